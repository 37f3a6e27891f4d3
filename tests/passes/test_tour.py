"""A tour of the patch calculus: one network before and after each pass of `pipeline.FILTERING`, as golden files.

tests/golden/tour.00_traced.txt, tour.01_static_moves.txt, ...: read in order, they are section 3 of docs/method.md.
"""

import pytest
from torch import nn

from gfcompile.passes import pipeline
from gfcompile.passes.sink import Sink
from gfcompile.step import Step
from tests.passes.nets import conv, with_head
from tests.passes.tiny import (
    GOLDEN,
    assert_golden,
    duplicate,
    filtered,
)

SHAPE = (2, 1, 8, 8)


def tour_step() -> Step:
    """conv-bn-relu, conv-bn-relu, pool, linear; everything trained, both convolutions filtered at r = 4."""
    model = with_head(conv(1, 2), nn.BatchNorm2d(2), nn.ReLU(), conv(2, 3), nn.BatchNorm2d(3), nn.ReLU(), shape=SHAPE)
    return filtered(model, SHAPE, r=4)


@pytest.fixture(scope="module")
def stops() -> dict[str, Step]:
    """The step after each pass, by the golden file's name."""
    found: dict[str, Step] = {}

    def observe(index: int, name: str, step: Step) -> None:
        found[f"tour.{index:02}_{name}"] = duplicate(step)

    pipeline.run(tour_step(), pipeline.FILTERING, observe)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tour.00_traced", *(f"tour.{i:02}_{each.name}" for i, each in enumerate(pipeline.FILTERING, 1))]
)
def test_golden(stops, name):
    assert_golden(name, stops[name])


def test_no_stop_of_another_tour_is_left(stops):
    assert {path.stem for path in GOLDEN.glob("tour.*.txt")} == set(stops)


@pytest.mark.slow
def test_nothing_is_materialised():
    step = pipeline.run(tour_step(), pipeline.FILTERING)
    (sunk,) = [event for event in step.log if event.pass_name == Sink.name]
    assert sunk.sites
    assert sunk.materialised == []
