"""What every pass promises, asked of all of them on the way through the pipeline: `find` only looks, the numbers stay
(or change as its own test says), and a second run changes nothing.

A pass's own file has what is particular to it: what it makes of a graph, what it refuses, what it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from gfcompile.optimizers import AdamW
from gfcompile.passes import pipeline
from gfcompile.passes.base import Pass
from gfcompile.settings.schema import Request
from gfcompile.step import Step
from tests.models.zoo import INPUTS, ZOO
from tests.passes.nets import Dense, Residual, SqueezeExcite, conv, plain, with_head
from tests.passes.tiny import (
    REORDERED,
    TIGHT,
    Numbers,
    assert_close,
    assert_second_run_changes_nothing,
    filtered,
    network_step,
    numbers,
    site_names,
    text,
    traced,
)
from tests.selection import often

OPTIMIZER = AdamW(clip_norm=0.5)
ALL = set(pipeline.passes_by_name())
CHANGE_NUMBERS = {"select", "draw_channels", "clip_gradients", "append_optimizer"}  # each tested against its formula
TO_THE_BIT = {"remove_dead", "merge_equal", "pack_masks", "hoist"}  # which compute nothing otherwise
ROUNDED = {"fold_frozen": TIGHT[torch.float32]}  # constants are float32 by design
SUMS = {"sink": REORDERED, "winograd": REORDERED}  # which add in another order
ONCE = {"channels_last"}  # it takes every image for one of channels first: test_channels_last.py has what holds
ALWAYS = {"remove_dead", "append_optimizer", "clip_gradients", "channels_last"}
FILTERS = {"select", "filter", "hoist"}
WIDE = (2, 32, 12, 12)


@dataclass(frozen=True)
class Case:
    """A step, and the passes beside `ALWAYS` that must find something to do in it."""

    make: Callable[[], Step]
    fire: frozenset[str]


class Moving(nn.Module):
    """Flipped rows, and channels by constant indices, behind a trained convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flip(2)[:, [3, 0, 0, 2]]


class Geometries(nn.Module):
    """Dense, grouped, depthwise and strided convolutions, for draws of their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 12, 3, padding=1)
        self.grouped = nn.Conv2d(12, 16, 3, padding=1, groups=2, bias=False)
        self.depthwise = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.dense, self.grouped, self.depthwise):
            x = part(x).relu()
        return self.head(x.mean((2, 3)))


def network(*fire: str, **request: object) -> Case:
    return Case(lambda: network_step(**request), frozenset({"canonicalize", *fire}))  # it has a norm


def built(*parts: Callable[[], nn.Module], fire: set[str], **plan: object) -> Case:
    return Case(
        lambda: filtered(with_head(*(make() for make in parts)), (2, 3, 8, 8), **plan),  # type: ignore[arg-type]
        frozenset(fire | FILTERS),
    )


def zoo(name: str, *fire: str) -> Case:
    shape = (2, *INPUTS[name][1:])
    return Case(lambda: traced(ZOO[name](), shape, Request(train=("*",))), FILTERS | set(fire))


def wide() -> Step:
    """3x3 convolutions of whole vectors of channels, one frozen."""
    parts = [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)]
    return traced(with_head(*parts, shape=WIDE), WIDE, Request(layers=1))


CASES = {
    "frozen norm": network("fold_batchnorm", "fold_frozen", *FILTERS),
    "trained scale": network("fold_frozen", *FILTERS, train=("norm",), layers=2),
    "everything": network("sink", *FILTERS, train=("*",)),
    "statistics of the batch": network(*FILTERS, batchnorm="train", train=("norm",)),
    "statistics of the batch, everything": network(*FILTERS, batchnorm="train", train=("*",)),
    "exact": network(exact=True, layers=2),
    "exact, statistics of the batch": network(exact=True, batchnorm="train", layers=2),
    "counted masks": built(
        lambda: conv(3, 4), *[lambda: Residual(conv())] * 2, fire={"merge_equal", "sink", "pack_masks"}
    ),
    "masks that are read": built(
        lambda: conv(3, 4), nn.ReLU, conv, r={"0": 2, "2": 3}, fire={"sink", "pack_masks"}
    ),
    "derivatives": built(
        lambda: conv(3, 4), nn.Hardswish, SqueezeExcite, conv, nn.SiLU, conv, fire={"sink"}
    ),
    "concatenation": built(
        lambda: plain(3), lambda: nn.BatchNorm2d(4), lambda: Dense(plain()), lambda: Residual(plain(8, 8), nn.ReLU()),
        batchnorm="train", fire={"merge_equal", "sink"},
    ),
    "moves": Case(
        lambda: traced(Moving(), (2, 3, 6, 4), Request(layers=1, exact=True)), frozenset({"static_moves"})
    ),
    "draws": Case(
        lambda: traced(Geometries(), (2, 3, 9, 8), Request(sparse={"*": 0.3})), frozenset({"draw_channels", *FILTERS})
    ),
    "exact draws": Case(
        lambda: traced(Geometries(), (2, 3, 9, 8), Request(sparse={"*": 0.3}, exact=True)),
        frozenset({"draw_channels"}),
    ),
    "winograd": Case(wide, frozenset({"winograd", "fold_frozen", *FILTERS})),
    **{name: zoo(name) for name in ZOO},
}  # fmt: skip


def test_every_pass_fires_in_some_case() -> None:
    assert set().union(ALWAYS, *(case.fire for case in CASES.values())) == ALL


@pytest.mark.slow
@pytest.mark.parametrize("name", often(CASES, [name for name in CASES if name not in ZOO]))
def test_every_pass_keeps_its_promises(name: str) -> None:
    step, fired = CASES[name].make(), set()
    before = numbers(step)
    for rewrite in pipeline.training_passes(OPTIMIZER):
        assert_find_only_looks(rewrite, step)
        rewrite.run(step)
        if site_names(step):
            fired.add(rewrite.name)
        after = numbers(step)
        if rewrite.name not in CHANGE_NUMBERS:
            assert_numbers_stay(rewrite.name, before, after)
        if rewrite.name not in ONCE:
            assert_second_run_changes_nothing(rewrite, step)
        before = after
    assert fired >= ALWAYS | CASES[name].fire, (ALWAYS | CASES[name].fire) - fired


def assert_find_only_looks(rewrite: Pass, step: Step) -> None:
    before = text(step)
    list(rewrite.find(step))
    if rewrite.name == "sink":  # forms are made of nodes, which nobody reads yet
        step.body.graph.eliminate_dead_code()
    assert text(step) == before, rewrite.name


def assert_numbers_stay(name: str, before: Numbers, after: Numbers) -> None:
    assert before.keys() == after.keys(), name
    for value, expected in before.items():
        if name in TO_THE_BIT:
            assert torch.equal(expected, after[value]), f"{name}: {value}"
        else:
            relative = (ROUNDED | SUMS).get(name, TIGHT[torch.float64])
            assert_close(expected, after[value], relative, f"{name}: {value}")
