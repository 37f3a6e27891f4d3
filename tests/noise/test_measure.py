"""`quality` against the same figures in NumPy, from gradients of eager PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.noise.measure import LayerNoise, measure
from gfcompile.noise.quality import Quality
from gfcompile.noise.similarity import Comparison, Likeness
from gfcompile.settings.schema import Request
from tests.budget.nets import one_dimensional, small, tied
from tests.models.zoo import INPUTS, ZOO
from tests.noise.eager_filter import Seen, backward, convolution_gradients, cosine, snr_db
from tests.oracles import patch_rows

EDGES = (1, 2, 3)
CLOSE = 1e-3  # in dB and in cosine, float32 against the NumPy oracle; measured 8e-6 dB and 8e-8
CASES = {"separable": 4, "dilated": 2, "concat": 4}  # depthwise and strided; taps in different patches; branches


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Tensor, Quality]:
    """A batch that is larger than the example's own."""
    model = ZOO[request.param]()
    generator = torch.Generator().manual_seed(3)
    x = torch.randn((5, *INPUTS[request.param][1:]), generator=generator)
    y = torch.randint(0, 5, (5,), generator=generator)
    return model, x, y, gfcompile.quality(model, x, y, layers=CASES[request.param], r=EDGES)


def assert_like(found: Likeness | None, exact: np.ndarray, filtered: np.ndarray, what: str) -> None:
    assert found is not None, what
    assert found.snr_db == pytest.approx(snr_db(exact, filtered), abs=CLOSE), what
    assert found.cosine == pytest.approx(cosine(exact, filtered), abs=CLOSE), what


def averaged(seen: Seen, r: int) -> np.ndarray:
    result = np.zeros_like(seen.gy)
    for rows in patch_rows(seen.gy.shape[2], r):
        for columns in patch_rows(seen.gy.shape[3], r):
            result[:, :, rows, columns] = seen.gy[:, :, rows, columns].mean((2, 3), keepdims=True)
    return result


def names(layers: Sequence[LayerNoise]) -> list[str]:
    return [layer.layer for layer in layers]


@pytest.mark.slow
def test_a_layer_alone(case: tuple[nn.Module, Tensor, Tensor, Quality]) -> None:
    model, x, y, quality = case
    layers = quality.measured.layers
    exact, _ = backward(model, x, y, dict.fromkeys(names(layers)))
    for layer in layers:
        seen = exact[layer.layer]
        for r in EDGES:
            gx, gw, _ = convolution_gradients(seen.x, seen.w, seen.gy, model.get_submodule(layer.layer), r)
            noise = layer.alone[r]
            assert_like(noise.gw, seen.gw, gw, f"{layer.layer} gw r={r}")
            assert_like(noise.gx, seen.gx, gx, f"{layer.layer} gx r={r}")
            assert_like(noise.gy, seen.gy, averaged(seen, r), f"{layer.layer} gy r={r}")


BRANCHES = ("wide.0", "pooled.1.0")  # of `concat`: they too read what is frozen


def test_all_layers_together(case: tuple[nn.Module, Tensor, Tensor, Quality]) -> None:
    model, x, y, quality = case
    layers = quality.measured.layers
    exact, exact_gradients = backward(model, x, y, dict.fromkeys(names(layers)))
    trained = {name for name in exact_gradients if name.removesuffix(".weight") in names(layers)}
    for r in EDGES:
        filtered, gradients = backward(model, x, y, dict.fromkeys(names(layers), r))
        for layer in layers:
            noise, before, after = layer.together[r], exact[layer.layer], filtered[layer.layer]
            assert_like(noise.gw, before.gw, after.gw, f"{layer.layer} gw r={r}")
            assert_like(noise.gy, before.gy, after.gy, f"{layer.layer} gy r={r}")
            if layer is layers[0] or layer.layer in BRANCHES:
                assert noise.gx is None, "nothing before the first trained layers reads it"
            else:
                assert_like(noise.gx, before.gx, after.gx, f"{layer.layer} gx r={r}")
        both = [np.concatenate([g[name].ravel() for name in sorted(trained)]) for g in (exact_gradients, gradients)]
        assert_like(quality.measured.whole[r], *both, f"all kernels, r={r}")


def test_the_loss_is_that_of_the_batch(case: tuple[nn.Module, Tensor, Tensor, Quality]) -> None:
    model, x, y, quality = case
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model.eval()(x), y)
    assert quality.measured.loss == pytest.approx(float(expected), rel=1e-5)
    assert quality.measured.samples == 5


@pytest.mark.slow
def test_a_pointwise_layer_alone_is_exact_at_r_1() -> None:
    model, shape = ZOO["separable"](), INPUTS["separable"]
    quality = gfcompile.quality(model, torch.randn(shape), torch.zeros(shape[0], dtype=torch.int64), layers=1, r=(1,))
    (layer,) = quality.measured.layers
    assert layer.geometry.kernel == (1, 1)
    assert layer.alone[1].gw == Likeness(120.0, pytest.approx(1.0))
    assert layer.energy.ratio is None
    assert layer.energy.holds


class Twice(nn.Module):
    """One convolution, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(self.conv(x).relu()).mean((2, 3)))


@pytest.mark.slow
def test_a_layer_that_is_called_twice_has_one_weight_gradient() -> None:
    torch.manual_seed(0)
    model, x, y = Twice(), torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    (layer,) = gfcompile.quality(model, x, y, layers=1, r=(2,)).measured.layers
    _, exact = backward(model, x, y, {"conv": None})
    _, filtered = backward(model, x, y, {"conv": 2})
    assert_like(layer.together[2].gw, exact["conv.weight"], filtered["conv.weight"], "gw of both calls")


def test_a_gradient_of_zero_says_nothing() -> None:
    comparison = Comparison()
    comparison.add(torch.zeros(3), torch.ones(3))
    assert comparison.result() == Likeness(None, None)


@pytest.mark.slow
def test_layers_that_share_a_kernel_are_measured_once() -> None:
    model, x, y = tied()
    measured = gfcompile.quality(model, x, y, r=(2,)).measured
    assert names(measured.layers) == ["two"]
    assert measured.refused == [
        ("one", "its kernel is another layer's, which is measured with the gradients of both"),
    ]
    _, exact = backward(model, x, y, {"two": None})
    assert measured.gw_squared == {"two": pytest.approx(float((exact["one.weight"] ** 2).sum()), rel=1e-4)}


@pytest.mark.slow
def test_what_cannot_be_filtered_has_a_size_all_the_same() -> None:
    model, x, y = one_dimensional()
    job = Job(model, (x,), resolve_loss("cross_entropy"), Request())
    nn.functional.cross_entropy(model(x), y).backward()
    expected = {name: pytest.approx(float(model[int(name)].weight.grad.square().sum()), rel=1e-4) for name in "02"}
    assert measure(job, y, (2,)).gw_squared == expected


@pytest.mark.slow
def test_only_layers_that_cannot_be_filtered() -> None:
    model, x, y = one_dimensional()
    with pytest.raises(UserError) as error:
        gfcompile.quality(model, x, y, r=(2,))
    assert str(error.value) == (
        "quality: no trained layer can be filtered; '0' is not: it is a 1-D convolution; gradient filtering is defined"
        " for 2-D; choose others with layers or train"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (float("nan"), "batch: the loss is nan: '2.weight' holds NaN or infinity; load other weights"),
        (1e30, "batch: the loss is nan: numbers grow too large on the way; scale x as the model was trained with"),
    ],
)
def test_numbers_that_are_not_finite(scale: float, text: str) -> None:
    model, x, y = small()
    with torch.no_grad():
        model[2].weight.mul_(scale)
        model[4].weight.mul_(1e30)
    with pytest.raises(UserError) as error:
        gfcompile.quality(model, x, y, r=(2,))
    assert str(error.value) == text


class Pair(nn.Module):
    """An image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor, extra: Tensor) -> Tensor:
        return self.head(torch.cat([self.conv(x).relu().mean((2, 3)), extra], 1))


@pytest.mark.slow
def test_several_inputs() -> None:
    x = (torch.randn(2, 3, 8, 8), torch.randn(2, 2))
    (layer,) = gfcompile.quality(Pair(), x, torch.tensor([0, 1]), layers=1, r=(2,)).measured.layers
    assert layer.layer == "conv"


@pytest.mark.slow
def test_what_torch_runs_and_tvm_does_not() -> None:
    """An operator without a translation: measured all the same."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            maps = self.conv(x)
            return self.head(maps.mean((2, 3)) + torch.special.bessel_j0(maps.detach()).mean())

    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    (layer,) = gfcompile.quality(Odd(), x, y, layers=1, r=(2,)).measured.layers
    assert layer.alone[2].gw.cosine is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"r": (0,)}, "r=0: must be patch edges of 1 or more, as in 1,2,4,7"),
        ({"r": (2.5,)}, "r=2.5: must be patch edges of 1 or more, as in 1,2,4,7"),
        ({"cosine": 1.5}, "cosine=1.5: must be a number from 0 to 1"),
        ({"train": "nothing"}, "train='nothing': no layer has that name; `gfcompile inspect MODEL` lists them"),
        (
            {"train": "11"},
            "quality: no trained layer can be filtered; choose others with layers or train",
        ),
        (
            {"y": torch.zeros(2, 5)},
            "batch: y is 2x5 float32; the loss 'cross_entropy' takes 2 whole numbers for these samples",
        ),
        ({"y": torch.tensor([1, 7])}, "batch: y holds class 7; the model has classes 0 to 4"),
    ],
)
def test_refusals(arguments: dict[str, object], text: str) -> None:
    shape = (2, *INPUTS["plain"][1:])
    given = {"y": torch.tensor([0, 1]), "r": (2,), "layers": None, **arguments}
    with pytest.raises(UserError) as error:
        gfcompile.quality(ZOO["plain"](), torch.zeros(shape), **given)  # type: ignore[arg-type]
    assert str(error.value) == text
