"""The patch calculus on random networks: the same numbers before and after, whatever the blocks, grids and joins.

Eight of them; `make coverage` has more. GF_FUZZ_EXAMPLES=500 GF_FUZZ_SEED=1 runs longer and elsewhere, and makes a
failing network smaller.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.pack_masks import PackMasks
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.passes.sink import Sink
from gfcompile.step import Role, Step
from tests.passes.nets import Branches, Dense, LayerScale, Residual, SpatialGate, SqueezeExcite, with_head
from tests.passes.tiny import REORDERED, Numbers, applied, filtered, node_values, numbers, text

EXAMPLES = int(os.environ.get("GF_FUZZ_EXAMPLES", "8"))
SEED = int(os.environ.get("GF_FUZZ_SEED", "0"))
PHASES = [Phase.generate, Phase.shrink] if "GF_FUZZ_EXAMPLES" in os.environ else [Phase.generate]
NOISE = 1e-13  # of the largest result: a bias before a train-mode BatchNorm has a gradient of rounding alone
ACTIVATIONS = [
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.Hardswish,
    nn.Hardsigmoid,
    nn.SiLU,
    nn.GELU,
    nn.Tanh,
    nn.ELU,
]
PATCHES = st.sampled_from([1, 2, 2, 2, 3, 4, 4, 7])
BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead(), MergeEqual())


@dataclass
class Chain:
    """Modules so far, and the map they give: channels, rows, columns."""

    width: int
    size: tuple[int, int]
    parts: list[nn.Module] = field(default_factory=list)


@st.composite
def convolutions(draw: st.DrawFn, ci: int, size: tuple[int, int], co: int | None = None) -> nn.Conv2d:
    """Any geometry that leaves a pixel; with `co`, one that keeps the map's size."""
    if co is not None:
        k = draw(st.sampled_from([1, 3]))
        return nn.Conv2d(ci, co, k, padding=k // 2, bias=draw(st.booleans()))
    k, d = draw(st.sampled_from([1, 2, 3, 3, 3])), draw(st.sampled_from([1, 1, 1, 2]))
    s = draw(st.sampled_from([1, 1, 2]))
    reach = d * (k - 1)
    least = max(0, -(-(reach + 1 - min(size)) // 2))
    p = max(least, draw(st.sampled_from([reach // 2, reach // 2, 0])))
    groups = draw(st.sampled_from([g for g in (1, 1, 2, ci) if ci % g == 0]))
    return nn.Conv2d(ci, groups * draw(st.integers(1, 2)), k, s, p, d, groups, bias=draw(st.booleans()))


@st.composite
def bodies(draw: st.DrawFn, width: int, size: tuple[int, int], co: int) -> list[nn.Module]:
    """A block's inside, which keeps the map's size."""
    parts: list[nn.Module] = [nn.BatchNorm2d(width)] if draw(st.booleans()) else []
    parts += [draw(st.sampled_from(ACTIVATIONS))()] if draw(st.booleans()) else []
    parts.append(draw(convolutions(width, size, co)))
    return parts + ([nn.BatchNorm2d(co)] if draw(st.booleans()) else [])


def _grow(draw: st.DrawFn, chain: Chain) -> None:
    width, size = chain.width, chain.size
    kinds = ["conv", "conv", "norm", "act", "act", "residual", "residual", "gate", "dense", "branches", "scale"]
    kinds += ["average", "max"] if min(size) >= 4 else []
    kind = draw(st.sampled_from(kinds))
    made: nn.Module
    if kind == "conv":
        made = draw(convolutions(width, size))
    elif kind == "norm":
        made = nn.BatchNorm2d(width)
    elif kind == "act":
        made = draw(st.sampled_from(ACTIVATIONS))()
    elif kind == "residual":
        made = Residual(*draw(bodies(width, size, width)), act=draw(st.sampled_from([nn.ReLU, nn.Identity, nn.SiLU]))())
    elif kind == "gate":
        made = draw(st.sampled_from([SqueezeExcite, SqueezeExcite, SpatialGate]))(width)
    elif kind == "dense":
        made = Dense(*draw(bodies(width, size, draw(st.integers(1, 3)))))
    elif kind == "branches":
        cut = draw(st.integers(0, width - 1))
        inside = draw(bodies(width - cut, size, width - cut))
        made = Branches(lambda x: (x[:, : max(cut, 1)], x[:, cut:]), nn.Identity(), nn.Sequential(*inside))
    elif kind == "scale":
        made = LayerScale(width)
    elif kind == "average":
        made = draw(st.sampled_from([nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(2)]))
    else:
        made = nn.MaxPool2d(2)
    with torch.no_grad():
        shape = made.eval()(torch.zeros(1, width, *size)).shape
    chain.parts.append(made)
    chain.width, chain.size = shape[1], (shape[2], shape[3])


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...], dict[str, object]]:
    """A model, its input's shape, and the plan."""
    shape = (2, draw(st.integers(1, 3)), draw(st.integers(4, 12)), draw(st.integers(4, 12)))
    chain = Chain(shape[1], (shape[2], shape[3]))
    width = draw(st.integers(2, 5))
    chain.parts.append(nn.Conv2d(shape[1], width, 3, padding=1))
    chain.width = width
    for _ in range(draw(st.integers(2, 7))):
        _grow(draw, chain)
    pool = draw(st.sampled_from([None, None, nn.AvgPool2d(chain.size), nn.Identity()]))
    model = with_head(*chain.parts, shape=shape, pool=pool)
    names = [name for name, part in model.named_modules() if isinstance(part, nn.Conv2d)]
    patches = {name: draw(PATCHES) for name in names} if draw(st.booleans()) else {"*": draw(PATCHES)}
    exact = draw(st.lists(st.sampled_from(names), max_size=1)) if draw(st.booleans()) else []
    return model, shape, {"r": patches, "batchnorm": draw(st.sampled_from(["eval", "eval", "train"])), "exact": exact}


def assert_near(before: Numbers, after: Numbers, what: str) -> None:
    values = {value: tensor for value, tensor in before.items() if tensor.is_floating_point()}
    largest = max(float(tensor.norm()) for value, tensor in values.items() if value.role is Role.GRADIENT)
    for value, tensor in values.items():
        assert tensor.shape == after[value].shape, f"{what}: {value}"
        allowed = REORDERED * float(tensor.norm()) + NOISE * largest
        assert float((tensor - after[value]).norm()) <= allowed, f"{what}: {value}"


def check(step: Step) -> None:
    before = numbers(step)
    if any(not bool(tensor.isfinite().all()) for tensor in before.values()):
        return
    for rewrite in (Sink(), PackMasks(), Hoist()):
        step = rewrite.run(step)
        assert_near(before, numbers(step), rewrite.name)
    for node, value in node_values(step).items():
        if isinstance(value, Tensor):
            assert node.meta["val"].shape == value.shape, f"{node} is not of the shape inferred for it"
    once = text(step)
    for rewrite in (PackMasks(), Hoist()):
        assert text(rewrite.run(step)) == once, f"a second {rewrite.name} changed the graph"


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=EXAMPLES, derandomize=False, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(networks())
def test_random_networks(network):
    model, shape, plan = network
    check(applied(filtered(model, shape, **plan), *BEFORE))


@pytest.mark.coverage
@seed(SEED)
@settings(max_examples=5 * EXAMPLES, derandomize=False, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(networks())
def test_more_random_networks(network):
    model, shape, plan = network
    check(applied(filtered(model, shape, **plan), *BEFORE))
