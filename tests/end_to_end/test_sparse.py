"""Sparse updates, compiled: the drawn part of the dense gradient, torch.optim on that part, and who draws what."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gfcompile
from gfcompile.frontend.losses import resolve_loss
from gfcompile.runtime import tensorfile
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.library import Draws
from gfcompile.verify.compare import verify
from tests.codegen.test_channel_kernels import touched
from tests.end_to_end.conftest import random_batch
from tests.lean import lean_compile
from tests.models import randomise_statistics
from tests.oracles import drawn_channels
from tests.runtime.trainer import order, run
from tests.selection import often
from tests.store import Store
from tests.tolerances import TRAINING_STEPS, assert_near

pytestmark = pytest.mark.slow
SHAPE, SHARE, LR = (4, 3, 12, 12), 0.3, 0.05
MASKED_GRADIENT = 1e-5  # the same float32 sums in another order; measured 4e-7
SGD: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01}


class Net(nn.Module):
    """Dense, grouped, in pairs, depthwise, strided and 1x1, with and without bias and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Conv2d(3, 16, 3, padding=1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.pairs = nn.Conv2d(16, 24, 3, stride=2, padding=1, groups=8)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False)
        self.pointwise = nn.Conv2d(24, 20, 1)
        self.head = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.grouped(self.dense(x).relu())).relu()
        return self.head(self.pointwise(self.depthwise(self.pairs(x).relu()).clamp(0, 6)).relu().mean((2, 3)))


CONVOLUTIONS = {name: part for name, part in Net().named_children() if isinstance(part, nn.Conv2d)}
# (sets, candidates, chosen, width): a third of 3; 5 of 16 in two groups; two groups of two; 7 of 24; 7 of 24
DRAWS = {
    "dense": (1, 3, 1, 1),
    "grouped": (2, 8, 2, 1),
    "pairs": (1, 8, 2, 2),
    "depthwise": (1, 24, 7, 1),
    "pointwise": (1, 24, 7, 1),
}


def artifact(store: Store, **options: Any) -> Path:
    """Compiled once for each set of options, for the tests of boards and GPUs as well."""
    if options.get("sparse_strategy") == "step":  # is so without being said
        del options["sparse_strategy"]
    return store.compiled(Net(), torch.zeros(SHAPE), "sparse_step", lr=LR, **options)


@pytest.fixture
def compiled(store: Store) -> Callable[..., gfcompile.CompiledStep]:
    """A fresh step of such an artifact."""
    return lambda **options: gfcompile.load(artifact(store, **options))


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    return random_batch(SHAPE, seed)


def mask_of(parameter: str, shape: tuple[int, ...], channels: dict[str, np.ndarray]) -> np.ndarray:
    layer = parameter.partition(".")[0]
    if layer not in channels or len(shape) != 4:
        return np.ones(shape, bool)
    return touched(list(shape), CONVOLUTIONS[layer].groups, channels[layer])


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "filtered"])
def test_gradients_are_the_drawn_part_of_the_dense_ones(compiled: Any, exact: bool) -> None:
    """Of a compiled dense step and, exact, of autograd; three draws through one library."""
    sparse, dense = compiled(sparse=SHARE, exact=exact, **SGD), compiled(exact=exact, **SGD)
    x, y = batch()
    expected = dense.gradients(x, y)
    if exact:
        model = Net().eval()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            if name in expected:
                assert_near(expected[name], parameter.grad, MASKED_GRADIENT, name)
    assert list(sparse.channels) == list(CONVOLUTIONS)
    for steps in range(3):
        sparse._library.set_draws(sparse._handle, Draws(0, steps, 0))
        channels, found = sparse.channels, sparse.gradients(x, y)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            mask = mask_of(name, gradient.shape, channels)
            assert_near(found[name], np.where(mask, gradient, 0), MASKED_GRADIENT, name)
            assert not found[name][~mask].any()


def test_a_share_of_one_is_the_dense_step_bit_for_bit(compiled: Any) -> None:
    sparse, dense = compiled(sparse=1.0, **SGD), compiled(exact=False, **SGD)
    assert sparse.channels == {}
    for seed in range(3):
        assert sparse.train(*batch(seed)) == dense.train(*batch(seed))
    states = sparse.state_dict(), dense.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, SGD, SGD),
    "adamw": (
        torch.optim.AdamW,
        {"weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 0.5},
    ),
}


@pytest.mark.parametrize("name", often(OPTIMIZERS, ["sgd"]))
def test_updates_are_those_of_torch_on_the_drawn_part(compiled: Any, name: str) -> None:
    """Each step, torch.optim is given the drawn weights with their state, and the number of all steps so far."""
    kind, settings, options = OPTIMIZERS[name]
    step = compiled(sparse=SHARE, exact=True, **options)
    model = Net().eval()
    weights = {key: value for key, value in model.named_parameters() if key in step.manifest["gradients"]}
    state: dict[str, dict[str, Tensor]] = {key: {} for key in weights}
    for number in range(8):
        x, y = batch(number)
        channels = step.channels
        loss = nn.functional.cross_entropy(model(x), y)
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        masks = {key: torch.from_numpy(mask_of(key, tuple(value.shape), channels)) for key, value in weights.items()}
        parts = {key: nn.Parameter(value.detach()[masks[key]]) for key, value in weights.items()}
        for key, part in parts.items():
            part.grad = gradients[key][masks[key]]
        if "clip_norm" in options:
            nn.utils.clip_grad_norm_(parts.values(), options["clip_norm"])
        peer = kind(list(parts.values()), lr=LR, **settings)
        for key, part in parts.items():
            peer.state[part] = {
                what: value[masks[key]].clone() if value.dim() else value.clone() for what, value in state[key].items()
            }
        peer.step()
        with torch.no_grad():
            for key, part in parts.items():
                weights[key][masks[key]] = part
                for what, value in peer.state[part].items():
                    if value is not None and value.dim():
                        whole = state[key].setdefault(what, torch.zeros_like(weights[key]))
                        whole[masks[key]] = value
                    elif value is not None:
                        state[key][what] = value
        assert_near(step.train(x, y), loss.detach(), TRAINING_STEPS, f"loss of step {number}")
        found = step.state_dict()
        for key, value in weights.items():
            assert_near(found[key], value.detach(), TRAINING_STEPS, f"{key} after step {number}")


@pytest.mark.parametrize("name", often(OPTIMIZERS, ["sgd"]))
def test_verify_compares_the_drawn_part(compiled: Any, name: str) -> None:
    """Gradients with autograd's, updates with torch.optim's: `gfcompile verify` knows what is not drawn."""
    with compiled(sparse=SHARE, exact=True, **OPTIMIZERS[name][2]) as step:
        checks = verify(Net(), resolve_loss("cross_entropy"), step._folder)
    assert {"gradient depthwise.weight", "update of pairs.weight"} <= {check.what for check in checks}
    assert [check for check in checks if not check.passed] == []


def test_what_is_not_drawn_keeps_its_bits(compiled: Any, tmp_path: Path) -> None:
    """Weight and momentum, in spite of weight decay; before the first step and later."""
    step = compiled(sparse=SHARE, exact=False, **SGD)
    for number in range(3):
        channels, before = step.channels, kept(step, tmp_path)
        step.train(*batch(number))
        after = kept(step, tmp_path)
        for key, old in before.items():
            mask = mask_of(key.rpartition("/")[2], old.shape, channels)
            assert np.array_equal(after[key][~mask], old[~mask]), key
            assert not np.array_equal(after[key][mask], old[mask]), key


def kept(step: gfcompile.CompiledStep, folder: Path) -> dict[str, np.ndarray]:
    step.save_checkpoint(folder / "state.ckpt")
    return {name: np.array(value) for name, value in tensorfile.read(folder / "state.ckpt").tensors.items()}


def test_draws_are_those_of_the_oracle(compiled: Any) -> None:
    """Bit for bit, for seeds and times of any size: the C runtime against numbers of Python."""
    step = compiled(sparse=SHARE, exact=False, **SGD)
    for seed, time in ((0, 0), (0, 1), (1, 0), (7, 123456), (2**32 - 1, 2**33 + 5)):
        step._library.set_draws(step._handle, Draws(seed, time, 9))
        for layer, (name, parts) in enumerate(DRAWS.items()):
            assert step.channels[name].tolist() == drawn_channels(seed, time, layer, *parts), (name, seed, time)


def test_every_channel_is_drawn_and_as_often_as_any_other(compiled: Any) -> None:
    """All within the time in which the chance to miss one is below 1e-6; frequencies and overlaps within 5 sigma."""
    step = compiled(sparse=SHARE, exact=False, **SGD)
    times = 2000
    draws: dict[str, list[np.ndarray]] = {name: [] for name in DRAWS}
    for time in range(times):
        step._library.set_draws(step._handle, Draws(3, time, 0))
        for name, channels in step.channels.items():
            draws[name].append(channels)
    for name, (sets, candidates, chosen, width) in DRAWS.items():
        total, share = sets * candidates * width, chosen / candidates
        enough = int(np.ceil(np.log(1e-6 / total) / np.log(1 - share)))
        assert set(np.concatenate(draws[name][:enough])) == set(range(total)), name
        counts = np.bincount(np.concatenate(draws[name]), minlength=total)
        assert np.abs(counts - times * share).max() < 5 * np.sqrt(times * share * (1 - share)), name
        members = np.zeros((times, total))
        for row, channels in enumerate(draws[name]):
            members[row, channels] = 1
        again = (members[1:] * members[:-1]).sum() / (times - 1) / width / sets  # of a set, drawn twice running
        expected = chosen * share
        spread = np.sqrt(expected * (1 - share) * (candidates - chosen) / (candidates - 1) / (times - 1) / sets)
        assert abs(again - expected) < 5 * spread, name


def test_a_checkpoint_goes_on_with_the_draws(compiled: Any, tmp_path: Path) -> None:
    """10 + 10 steps are 20, in a new step, by the strategy's own count; the seed comes along."""
    for strategy in ("step", "epoch"):
        options = {"sparse": SHARE, "exact": False, "sparse_strategy": strategy, **SGD}
        whole, first, second = (compiled(**options) for _ in range(3))
        for step in (whole, first):
            step.draw_seed = 11
        for number in range(20):
            whole.epoch = number // 4
            whole.train(*batch(number))
        for number in range(10):
            first.epoch = number // 4
            first.train(*batch(number))
        first.save_checkpoint(tmp_path / "run.ckpt")
        second.load_checkpoint(tmp_path / "run.ckpt")
        assert (second.draw_seed, second.epoch, second.steps) == (11, 2, 10)
        for number in range(10, 20):
            second.epoch = number // 4
            second.train(*batch(number))
        states = whole.state_dict(), second.state_dict()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_strategies(compiled: Any) -> None:
    """Who draws when; the largest norms by loops over the weights."""
    options = {"sparse": SHARE, "exact": False, **SGD}
    epoch, fixed, norm = (compiled(**options, sparse_strategy=name) for name in ("epoch", "fixed", "norm"))
    seen: dict[str, list[str]] = {"epoch": [], "fixed": [], "norm": []}
    for number in range(4):
        for name, step in (("epoch", epoch), ("fixed", fixed), ("norm", norm)):
            step.epoch = number // 2
            seen[name].append(str(step.channels))
            step.train(*batch(number))
    assert seen["epoch"][0] == seen["epoch"][1] != seen["epoch"][2] == seen["epoch"][3]
    assert len(set(seen["fixed"])) == len(set(seen["norm"])) == 1
    before = str(fixed.channels)
    fixed.draw_seed = 5
    assert str(fixed.channels) != before
    for name, (sets, candidates, chosen, width) in DRAWS.items():
        weight = CONVOLUTIONS[name].weight.detach().numpy().astype(np.float64)
        norms = [
            (weight[touched(list(weight.shape), CONVOLUTIONS[name].groups, np.arange(at, at + width))] ** 2).sum()
            for at in range(0, sets * candidates * width, width)
        ]
        best = [
            number * candidates + at
            for number in range(sets)
            for at in sorted(np.argsort(norms[number * candidates : (number + 1) * candidates])[-chosen:])
        ]
        assert norm.channels[name].tolist() == [at * width + i for at in best for i in range(width)], name


class Scaled(nn.Module):
    """A convolution whose module has another parameter of four axes, and that one first; a module of two kernels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pair = nn.Module(), nn.Module()
        self.conv.gain = nn.Parameter(torch.ones(1, 8, 1, 1))
        self.conv.weight = nn.Parameter(torch.randn(8, 3, 3, 3) / 5)
        self.pair.narrow = nn.Parameter(torch.randn(4, 8, 3, 3) / 8)
        self.pair.wide = nn.Parameter(torch.randn(16, 4, 3, 3) / 6)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        conv = nn.functional.conv2d
        x = (conv(x, self.conv.weight, padding=1) * self.conv.gain).relu()
        return self.head(conv(conv(x, self.pair.narrow).relu(), self.pair.wide).mean((2, 3)))


def test_kernels_go_by_their_names(tmp_path: Path) -> None:
    """What is drawn, which norms are the largest, and what `gfcompile verify` expects."""
    options: dict[str, Any] = {"sparse": SHARE, "sparse_strategy": "norm", "exact": True}
    with lean_compile(Scaled(), torch.zeros(SHAPE), out=tmp_path / "scaled_step", lr=LR, **options) as step:
        norms = Scaled().conv.weight.detach().pow(2).sum((0, 2, 3))
        assert {name: drawn.tolist() for name, drawn in step.channels.items()} == {"conv": [int(norms.argmax())]}
        checks = verify(Scaled(), resolve_loss("cross_entropy"), step._folder)
    assert {"gradient conv.gain", "update of conv.weight", "update of pair.wide"} <= {check.what for check in checks}
    assert [check for check in checks if not check.passed] == []


def test_channels_of_the_caller(compiled: Any) -> None:
    """One call's; what is not named is drawn as ever."""
    step, other = (compiled(sparse=SHARE, exact=False, **SGD) for _ in range(2))
    x, y = batch()
    wanted = {"pointwise": np.arange(7), "pairs": [0, 1, 14, 15]}
    drawn = step.channels["dense"]
    gradients = step.gradients(x, y, channels=wanted)
    used = {**step.channels, **{name: np.asarray(value) for name, value in wanted.items()}}
    assert used["dense"].tolist() == drawn.tolist()
    for name, gradient in gradients.items():
        assert not gradient[~mask_of(name, gradient.shape, used)].any(), name
    assert step.train(x, y, channels=step.channels) == other.train(x, y)
    states = step.state_dict(), other.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown": (
        {"head": [1]},
        "train: channels of 'head': drawn are those of dense, grouped, pairs, depthwise, pointwise",
    ),
    "no dictionary": ([1], "train: channels are a 'list'; pass a dictionary from layers to their channels"),
    "too few": ({"dense": []}, "train: channels of 'dense' are float64 (0,); pass 1 whole numbers"),
    "no numbers": ({"dense": [0.5]}, "train: channels of 'dense' are float64 (1,); pass 1 whole numbers"),
    "too large": ({"dense": [3]}, "train: channels of 'dense': 3 does not fit at place 0; give 1 of 0 to 2, ascending"),
    "wraps around": (
        {"dense": [2**32]},
        "train: channels of 'dense': 4294967296 does not fit at place 0; give 1 of the layer's input channels,"
        " ascending",
    ),
    "twice": (
        {"pointwise": [0, 1, 2, 3, 4, 4, 5]},
        "train: channels of 'pointwise': 4 does not fit at place 5; give 7 of 0 to 23, ascending",
    ),
    "unequal groups": (
        {"grouped": [0, 1, 2, 15]},
        "train: channels of 'grouped': 2 does not fit at place 2; give 2 of each group of 8, ascending",
    ),
    "half a group": (
        {"pairs": [0, 1, 3, 4]},
        "train: channels of 'pairs': 3 does not fit at place 2; give all channels of 2 groups of 2, ascending",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_channels_that_cannot_be(compiled: Any, case: str) -> None:
    step = compiled(sparse=SHARE, exact=False, **SGD)
    channels, text = REFUSED[case]
    before = step.state_dict()
    with pytest.raises(StepError) as caught:
        step.train(*batch(), channels=channels)
    assert str(caught.value) == text
    assert all(torch.equal(before[name], tensor) for name, tensor in step.state_dict().items())
    assert step.steps == 0


@pytest.mark.parametrize("value", [-1, 2**32, True, 1.5])
def test_seeds_that_cannot_be(compiled: Any, value: Any) -> None:
    step = compiled(sparse=SHARE, exact=False, **SGD)
    with pytest.raises(StepError) as caught:
        step.draw_seed = value
    assert str(caught.value) == f"draw_seed: {value!r} is not usable; pass a whole number of 0 to 4294967295"


def test_a_cached_prefix_and_a_debug_build_give_the_same_bits(tmp_path: Path) -> None:
    """Channels are no part of what is cached: they are drawn for every step."""
    model, x = randomise_statistics(Net(), seed=0), torch.zeros(SHAPE)
    options: dict[str, Any] = {"layers": 2, "sparse": SHARE, "lr": LR, **SGD}
    plain = lean_compile(model, x, out=tmp_path / "plain_step", **options)
    folder = tmp_path / "cached_step"
    cached = lean_compile(model, x, out=folder, cache_prefix=True, debug=True, **options)
    watched = gfcompile.load(folder)
    assert len(plain.channels) == 2
    for number in range(3):
        x, y = batch(number)
        expected = plain.train(x, y)
        assert cached.train_features(cached.features(x), y) == expected
        assert watched.train(x, y) == expected
    states = [step.state_dict() for step in (plain, cached, watched)]
    assert all(torch.equal(state[name], states[0][name]) for state in states[1:] for name in state)


@pytest.mark.parametrize("strategy", ["step", "epoch"])
def test_gf_train_draws_as_python_does_and_resumes(compiled: Any, tmp_path: Path, strategy: str) -> None:
    """10 batches an epoch of 4: 10 + 10 steps of gf-train are 20 of it, and those of Python, bit for bit."""
    step = compiled(sparse=SHARE, exact=False, sparse_strategy=strategy, **SGD)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(28, *SHAPE[1:])).astype(np.float32), random.integers(0, 10, 28)
    for name, values in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values)
    data = ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--seed", "6"]
    trainer = step._folder / "gf-train"
    run(trainer, *data, "--steps", "20", "--checkpoint", tmp_path / "whole.ckpt")
    run(trainer, *data, "--steps", "10", "--checkpoint", tmp_path / "parts.ckpt")
    run(trainer, *data, "--steps", "20", "--checkpoint", tmp_path / "parts.ckpt")
    step.draw_seed = 6
    for number in range(20):
        step.epoch = number // 7
        part = order(6, number // 7, 28)[number % 7 * 4 :][:4]
        step.train(x[part], y[part])
    expected = step.state_dict()
    for name in ("whole", "parts"):
        step.load_checkpoint(tmp_path / f"{name}.ckpt")
        assert (step.draw_seed, step.epoch, step.steps) == (6, 2, 20)
        found = step.state_dict()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
    assert run(trainer, "--selftest").splitlines()[-1].startswith("PASS")


def test_gf_train_goes_on_from_a_dense_checkpoint_with_its_seed(compiled: Any, tmp_path: Path) -> None:
    """Which shuffles by the file's seed: it draws by that one, too. Seeds that draws have no room for are refused."""
    sparse, dense = compiled(sparse=SHARE, exact=False, **SGD), compiled(exact=False, **SGD)
    random = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", random.normal(size=(8, *SHAPE[1:])).astype(np.float32))
    np.save(tmp_path / "y.npy", random.integers(0, 10, 8))
    data = ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--checkpoint"]
    run(dense._folder / "gf-train", *data, tmp_path / "run.ckpt", "--steps", "2", "--seed", "6")
    run(sparse._folder / "gf-train", *data, tmp_path / "run.ckpt", "--steps", "3")
    sparse.load_checkpoint(tmp_path / "run.ckpt")
    assert (sparse.draw_seed, sparse.steps) == (6, 3)
    run(dense._folder / "gf-train", *data, tmp_path / "large.ckpt", "--steps", "2", "--seed", str(2**32))
    refused = (
        "gf-train: seed 4294967296: channels are drawn from seeds up to 4294967295; give a smaller --seed, or begin"
        " another checkpoint\n"
    )
    for name, seed in (("large", []), ("new", ["--seed", str(2**32)])):
        words = [*data, tmp_path / f"{name}.ckpt", "--steps", "3", *seed]
        assert run(sparse._folder / "gf-train", *words, code=2) == refused
