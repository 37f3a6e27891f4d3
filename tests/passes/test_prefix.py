"""The frozen prefix: where it ends, what is stored at the cut, and that both halves make the whole."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import SGD
from gfcompile.passes import pipeline
from gfcompile.passes.prefix import Prefix, find_prefix, fingerprint, split
from gfcompile.settings.schema import Request
from gfcompile.stages import analyse, trace
from gfcompile.step import Role, Step
from tests.models import randomise_statistics
from tests.models.mobilenet import mobilenet_v2
from tests.models.resnet import resnet10
from tests.passes.nets import Residual, conv, with_head
from tests.selection import often

SHAPE = (4, 3, 16, 16)


def small(shape: tuple[int, ...] = SHAPE) -> nn.Module:
    return with_head(conv(3, 8), nn.ReLU(), conv(8, 16, stride=4), nn.ReLU(), conv(16, 8), nn.ReLU(), shape=shape)


def rewritten(model: nn.Module, shape: tuple[int, ...] = SHAPE, **wishes: Any) -> Step:
    """The training step after all passes."""
    job = Job(model, (torch.zeros(shape),), resolve_loss("cross_entropy"), Request(**wishes))
    return pipeline.run(trace(job).training, pipeline.training_passes(SGD(0.9)))


def resnet(layers: int, exact: bool = False) -> Step:
    return _resnet(layers, exact)


@cache  # which takes a default that is left out and one that is given for two things
def _resnet(layers: int, exact: bool) -> Step:
    torch.manual_seed(0)
    return rewritten(randomise_statistics(resnet10(10, 8), 0), (2, 3, 64, 64), layers=layers, exact=exact)


def shapes(prefix: Prefix) -> list[tuple[int, ...]]:
    return [tuple(node.meta["val"].shape) for node in prefix.features]


def run(step: Step, given: dict[str, Tensor]) -> list[Tensor]:
    """In plain PyTorch, state as zeros where the model has none."""
    inputs = []
    for node, value in zip(step.placeholders(), step.inputs, strict=True):
        wanted, known = node.meta["val"], given.get(value.name, step.tensors.get(value.name))
        if known is None or known.shape != wanted.shape:  # optimizer state; weights in the kernels' layout
            generator = torch.Generator().manual_seed(wanted.numel())
            known = 0.1 * torch.randn(wanted.shape, generator=generator)
        inputs.append(known.clone())
    with torch.no_grad():
        return list(step.run(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "exact"), often([(1, False), (3, False), (4, False), (4, True)], [(4, False), (4, True)])
)
def test_the_halves_make_the_whole(layers: int, exact: bool) -> None:
    step = resnet(layers, exact)
    features, rest = split(step, find_prefix(step))
    given = {
        "x": torch.randn(2, 3, 64, 64), "target": torch.tensor([3, 7]), "sample_weight": torch.ones(2),
        "lr": torch.tensor(0.1),
    }  # fmt: skip
    found = run(features, given)
    cached = run(rest, {**given, **{value.name: part for value, part in zip(features.outputs, found, strict=True)}})
    assert rest.outputs == step.outputs
    for value, whole, half in zip(step.outputs, run(step, given), cached, strict=True):
        assert torch.equal(whole, half), value
    assert not any(value.role is Role.INPUT for value in rest.inputs)
    assert {value.role for value in features.inputs} == {Role.INPUT, Role.CONSTANT}


@pytest.mark.slow
def test_a_residual_block_is_cut_on_both_paths() -> None:
    assert shapes(find_prefix(resnet(1))) == [(2, 2, 2, 64)] * 2


def test_what_derives_from_a_feature_is_computed_again() -> None:
    """The first trained layer reads its input and, for its gradient, the patch sums of it; one is stored. The frozen
    1x1 convolution beside it costs less than the bytes of its result."""
    prefix = find_prefix(resnet(4))
    assert shapes(prefix) == [(2, 8, 8, 16)]
    assert (prefix.bytes_a_sample("float32"), prefix.bytes_a_sample("float16")) == (8 * 8 * 16 * 4, 8 * 8 * 16 * 2)
    _, rest = split(resnet(4), prefix)
    assert any("patch_sum" in node.name for node in rest.placeholders()[0].users)


@pytest.mark.slow
def test_the_narrow_side_of_an_expansion_is_stored() -> None:
    """MobileNet's last block from its depthwise convolution on: 40 channels before the frozen expansion, 240 behind."""
    torch.manual_seed(0)
    step = rewritten(mobilenet_v2(10, 0.25), (2, 3, 64, 64), layers=3)
    assert shapes(find_prefix(step)) == [(2, 2, 2, 40)]


@pytest.mark.slow
def test_multiply_adds_are_counted() -> None:
    """Two frozen convolutions; the last is trained exactly: forward and its weight gradient, and the classifier's."""
    prefix = find_prefix(rewritten(small(), layers=1, exact=True))
    frozen, trained = 4 * (256 * 3 * 8 + 16 * 8 * 16) * 9, 4 * 16 * 16 * 8 * 9
    assert prefix.multiply_adds == frozen
    assert prefix.step_multiply_adds == frozen + 2 * trained + 3 * 4 * 8 * 2
    assert prefix.share == pytest.approx(prefix.multiply_adds / prefix.step_multiply_adds)


@pytest.mark.slow
def test_batch_statistics_end_it() -> None:
    torch.manual_seed(0)
    body = [conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 16, stride=4), nn.BatchNorm2d(16), nn.ReLU(), conv(16, 8)]
    prefix = find_prefix(rewritten(with_head(*body, shape=SHAPE), layers=1, batchnorm={"4": "train"}))
    assert shapes(prefix) == [(4, 4, 4, 16)]
    assert [str(ending) for ending in prefix.endings] == [
        "'4': 'mean' mixes the samples of a batch; --batchnorm 4=eval lets it go on"
    ]
    assert prefix.multiply_adds == 4 * (256 * 3 * 8 + 16 * 8 * 16) * 9


@pytest.mark.slow
def test_random_numbers_end_it() -> None:
    body = [conv(3, 8, stride=4), nn.ReLU(), nn.Dropout(0.5), conv(8, 16), nn.ReLU(), conv(16, 8)]
    step = rewritten(with_head(*body, shape=SHAPE), layers=1, dropout=True)
    prefix = find_prefix(step)
    assert prefix.multiply_adds == 4 * 16 * 3 * 8 * 9
    assert [str(ending) for ending in prefix.endings] == [
        "'before 3': random numbers are drawn in every step; leave out --dropout"
    ]
    assert "seed" in [value.name for value in split(step, prefix)[1].inputs]


def refusal_of(model: nn.Module, shape: tuple[int, ...] = SHAPE, **wishes: Any) -> str:
    loss, request = resolve_loss("cross_entropy"), Request(**wishes)
    with pytest.raises(UserError) as caught:
        analyse(Job(model, (torch.zeros(shape),), loss, request, cache_prefix=True))
    return str(caught.value)


@pytest.mark.slow
def test_nothing_frozen_is_refused() -> None:
    assert refusal_of(small(), exact=True) == (
        "--cache-prefix: nothing to cache: no convolution is frozen before '0', which is trained;"
        " train fewer layers, as in --layers 1"
    )


@pytest.mark.slow
def test_samples_that_mix_from_the_start_are_refused() -> None:
    model = with_head(nn.BatchNorm2d(3), conv(3, 8), nn.ReLU(), conv(8, 8), shape=SHAPE)
    assert refusal_of(model, layers=1, batchnorm="train") == (
        "--cache-prefix: nothing to cache: no convolution comes before its end at '0': 'mean' mixes the samples of a"
        " batch; --batchnorm 0=eval lets it go on"
    )


@pytest.mark.slow
def test_features_dearer_than_their_work_are_refused() -> None:
    """64 channels of the input's size, each made of one by nine multiply-adds."""
    model = with_head(conv(1, 64), nn.ReLU(), conv(64, 2), shape=(4, 1, 16, 16))
    assert refusal_of(model, (4, 1, 16, 16), layers=1, exact=True) == (
        "--cache-prefix: nothing to cache: computing the features again is cheaper than to read them;"
        " train fewer layers, as in --layers 1"
    )


@pytest.mark.slow
def test_an_input_that_the_suffix_reads_is_a_feature() -> None:
    model = with_head(
        Residual(conv(3, 32, k=5), nn.ReLU(), conv(32, 4), nn.ReLU(), conv(4, 3), act=nn.ReLU()), shape=SHAPE
    )
    prefix = find_prefix(rewritten(model, layers=1, exact=True))
    assert shapes(prefix) == [(4, 16, 16, 3), (4, 16, 16, 4)]  # the image, channels last, and the second map


@pytest.mark.slow
def test_the_fingerprint_is_of_what_features_depend_on() -> None:
    def of(step: Step, version: str = "1") -> str:
        return fingerprint(split(step, find_prefix(step))[0], version)

    assert of(resnet(4)) == of(resnet(4, exact=True))  # the same features for another way to train
    assert of(resnet(4)) != of(resnet(1))
    assert of(resnet(4)) != of(resnet(4), "2")
    for name, differs in (("conv1", True), ("fc", False)):  # a frozen layer's weights, a trained one's
        torch.manual_seed(0)
        model = randomise_statistics(resnet10(10, 8), 0)
        with torch.no_grad():
            getattr(model, name).weight.add_(1)
        other = rewritten(model, (2, 3, 64, 64), layers=4)
        assert (of(other) != of(resnet(4))) == differs, name
