"""sink: gradients meet their patch means without pixels; what must stay at full resolution says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from gfcompile.graph.crossing import Crossing
from gfcompile.graph.shapes import shape_of
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.filter import Filter
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.linear_forms import Algebra, Form, Writer
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.pack_masks import PackMasks
from gfcompile.passes.patch_values import Evaluation
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.passes.sink import MOST_TERMS, Sink
from gfcompile.step import Step
from tests.passes.nets import (
    SHAPE,
    Apply,
    Branches,
    Dense,
    LayerScale,
    Product,
    Residual,
    SpatialGate,
    SqueezeExcite,
    conv,
    plain,
    with_head,
)
from tests.passes.tiny import (
    REORDERED,
    applied,
    assert_golden,
    assert_same_numbers,
    assert_second_run_changes_nothing,
    filtered,
    network_step,
    node_values,
    nodes,
    numbers,
    site_names,
    text,
)
from tests.selection import often

BEFORE = (Canonicalize(), Select(), Filter(), RemoveDead(), MergeEqual())
PATCH_MEAN = torch.ops.gf.patch_mean.default
JOINS = "it is combined with a gradient that exists at full resolution"
POOLED = "average pooling spreads it: its value on the pooled map is needed"
MANY = f"its expansion has more than {MOST_TERMS} terms: after so many joins it is dearer"
Shape = tuple[int, ...]
FULL, HALF = (2, 4, 8, 8), (2, 4, 4, 4)


@dataclass(frozen=True)
class Case:
    """A network, its plan, and the full-resolution gradients that must remain: shapes and reasons, in order."""

    model: Callable[[], nn.Module]
    shape: Shape = SHAPE
    plan: dict[str, Any] = field(default_factory=dict)
    remain: tuple[tuple[Shape, str], ...] = ()

    def step(self) -> Step:
        return applied(filtered(self.model(), self.shape, **self.plan), *BEFORE)


def case(
    *parts: Callable[[], nn.Module], shape: Shape = SHAPE, pool: nn.Module | None = None, remain: Any = (), **plan: Any
) -> Case:
    """A head behind the parts, which are made when the test runs."""
    return Case(lambda: with_head(*(part() for part in parts), shape=shape, pool=pool), shape, plan, tuple(remain))


def stem() -> nn.Module:
    return conv(3, 4)


def norm(width: int = 4) -> nn.Module:
    return nn.BatchNorm2d(width)


relu = nn.ReLU

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky relu": lambda: nn.LeakyReLU(0.1),
    "prelu": lambda: nn.PReLU(4),
    "prelu of one weight": nn.PReLU,
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"),
    "elu": nn.ELU,
    "selu": nn.SELU,
    "mish": nn.Mish,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "absolute value": lambda: Apply(torch.abs),
    "square": lambda: Apply(torch.square),
    "a scalar": lambda: Apply(lambda x: 1 - 2 * x / 3),
}

NETS: dict[str, Case] = {
    **{f"activation: {name}": case(stem, norm, act, conv) for name, act in ACTIVATIONS.items()},
    "batch norm, eval": case(lambda: plain(3), norm, relu, plain, norm, relu, plain),
    "batch norm, eval, frozen": case(lambda: plain(3), norm, relu, plain, norm, relu, frozen=["1", "4"]),
    "batch norm, train": case(lambda: plain(3), norm, relu, plain, norm, relu, plain, batchnorm="train"),
    "batch norm, train, frozen": case(
        lambda: plain(3), norm, relu, plain, norm, relu, batchnorm="train", frozen=["1", "4"]
    ),
    "batch norm, train, without affine": case(
        lambda: plain(3), lambda: nn.BatchNorm2d(4, affine=False), relu, plain, batchnorm="train"
    ),
    "batch norm, train, patches that overhang": case(
        lambda: plain(3), norm, relu, plain, norm, relu, shape=(2, 3, 9, 7), batchnorm="train", r=3
    ),
    "squeeze-excite": case(stem, relu, SqueezeExcite, conv, lambda: SqueezeExcite(gate=nn.Hardsigmoid()), conv),
    "squeeze-excite at the end": case(stem, relu, SqueezeExcite, relu),
    "layer scale": case(stem, LayerScale, conv, LayerScale),
    "residual": case(stem, relu, lambda: Residual(conv(), nn.ReLU(), conv()), conv),
    "residual, two deep": case(stem, relu, *[lambda: Residual(conv(), nn.ReLU(), conv())] * 2),
    "residual, four deep": case(stem, relu, *[lambda: Residual(conv())] * 4),
    "residual, as deep as allowed": case(stem, *[lambda: Residual(conv())] * (MOST_TERMS - 1)),
    "residual, batch norm, train": case(
        lambda: plain(3),
        norm,
        relu,
        *[lambda: Residual(plain(), nn.BatchNorm2d(4), nn.ReLU(), plain(), nn.BatchNorm2d(4))] * 2,
        batchnorm="train",
    ),
    "residual with a projection": case(
        stem, relu, lambda: Residual(conv(stride=2), nn.ReLU(), conv(), shortcut=conv(k=1, stride=2)), conv
    ),
    "residual before the activation": case(
        stem, *[lambda: Residual(nn.BatchNorm2d(4), nn.ReLU(), conv(), act=nn.Identity())] * 3, relu
    ),
    "residual with layer scale": case(stem, relu, *[lambda: Residual(conv(), LayerScale())] * 2),
    "concatenation": case(
        stem, relu, lambda: Dense(nn.ReLU(), conv(4, 3)), lambda: Dense(nn.ReLU(), conv(7, 3)), lambda: conv(10, 4)
    ),
    "concatenation, batch norm, train": case(
        lambda: plain(3),
        lambda: Dense(nn.BatchNorm2d(4), nn.ReLU(), plain(4, 3)),
        lambda: nn.BatchNorm2d(7),
        relu,
        batchnorm="train",
    ),
    "chunk": case(stem, relu, lambda: Branches(lambda x: x.chunk(2, 1), conv(2, 2), nn.Identity()), relu, conv),
    "split": case(
        stem, relu, lambda: Branches(lambda x: x.split([1, 3], 1), conv(1, 2), conv(3, 3)), lambda: conv(5, 4)
    ),
    "overlapping slices": case(
        stem,
        relu,
        lambda: Branches(lambda x: (x.narrow(1, 1, 2), x[:, :3]), conv(2, 2), nn.ReLU()),
        lambda: conv(5, 4),
    ),
    "channels that nobody reads": case(stem, relu, lambda: Apply(lambda x: x[:, 1:3]), lambda: conv(2, 4)),
    "gated linear unit": case(lambda: conv(3, 8), lambda: nn.GLU(1), conv),
    "product of two branches": case(stem, relu, lambda: Product(conv(), conv()), conv),
    "average pooling": case(stem, relu, lambda: nn.AvgPool2d(2), conv),
    "average pooling that leaves a row over": case(stem, relu, lambda: nn.AvgPool2d(3), conv),
    "average pooling with its own divisor": case(stem, relu, lambda: nn.AvgPool2d(2, divisor_override=3), conv),
    "average pooling of a whole map": case(stem, relu, conv, pool=nn.AvgPool2d(8)),
    "adaptive pooling": case(stem, relu, lambda: nn.AdaptiveAvgPool2d(4), conv),
    "strides": case(
        lambda: conv(3, 4, stride=2), relu, lambda: conv(stride=2), relu, lambda: conv(stride=2), shape=(2, 3, 16, 16)
    ),
    "depthwise": case(lambda: conv(3, 4, 1), relu, lambda: conv(groups=4, stride=2), relu, lambda: conv(4, 6, 1)),
    "dilated": case(lambda: conv(3, 4, padding=2, dilation=2), relu, lambda: conv(padding=2, dilation=2), relu, conv),
    "coarse over fine": case(stem, relu, conv, relu, conv, r={"0": 2, "2": 4, "4": 2}),
    "fine over coarse": case(stem, relu, conv, relu, conv, r={"0": 4, "2": 2, "4": 4}),
    "patches larger than the map": case(stem, relu, conv, relu, conv, r=20),
    "a map of one pixel": case(stem, relu, conv, shape=(2, 3, 1, 1)),
    "down to one pixel": case(
        lambda: conv(3, 4, stride=2), relu, lambda: conv(stride=2), relu, lambda: conv(stride=2), shape=(2, 3, 4, 4)
    ),
    "a map of one row": case(stem, relu, conv, relu, conv, shape=(2, 3, 1, 9)),
    "a block of MobileNetV3": case(
        lambda: conv(3, 4, 1),
        nn.Hardswish,
        lambda: Residual(
            conv(4, 6, 1),
            nn.BatchNorm2d(6),
            nn.Hardswish(),
            conv(6, 6, groups=6),
            SqueezeExcite(6, nn.Hardsigmoid()),
            nn.Hardswish(),
            conv(6, 4, 1),
            nn.BatchNorm2d(4),
            act=nn.Identity(),
        ),
        conv,
    ),
}


def spread(shape: Shape, reason: str, *behind: tuple[Shape, str]) -> tuple[tuple[Shape, str], ...]:
    """A broadcast and the masked gradient behind it, which something reads; then what comes of it."""
    return ((shape, reason), (shape, reason), *behind)


MASKED: tuple[tuple[Shape, str], ...] = ((FULL, JOINS), (FULL, JOINS))  # a gradient that is born whole, and its ReLU


def do_not_nest(one: str, other: str, size: str = "8x8") -> str:
    return f"{one} and {other} of one {size} map do not nest"


TWOS, THREES = "4x4 patches of 2x2", "3x3 patches of 3x3"
MATERIALISING: dict[str, Case] = {
    "an exact convolution behind": case(
        stem,
        relu,
        conv,
        exact=["0"],
        remain=spread(FULL, "0 is trained exactly: its weight gradient reads every pixel"),
    ),
    "an exact convolution between": case(
        stem,
        relu,
        conv,
        relu,
        conv,
        exact=["2"],
        remain=spread(FULL, "2 is trained exactly: its weight gradient reads every pixel", *MASKED),
    ),
    "a frozen convolution in the path": case(
        stem,
        relu,
        conv,
        relu,
        conv,
        frozen=["2"],
        remain=spread(FULL, "the gradient passes through frozen 2 exactly; --train 2 filters it", *MASKED),
    ),
    "a max pool": case(
        stem,
        relu,
        lambda: nn.MaxPool2d(2),
        conv,
        remain=(
            (HALF, "max_pool2d_with_indices_backward reads it pixel by pixel"),
            *MASKED,
        ),
    ),
    "grids that do not nest": case(
        stem,
        relu,
        conv,
        relu,
        conv,
        r={"2": 3},
        remain=spread(FULL, do_not_nest(TWOS, THREES), *spread(FULL, do_not_nest(THREES, TWOS))),
    ),
    "grids that do not nest, nothing between": case(
        stem, conv, r={"1": 3}, remain=((FULL, do_not_nest(THREES, TWOS)),)
    ),
    "grids that do not nest, batch norm between": case(
        stem,
        norm,
        conv,
        r={"2": 3},
        remain=((FULL, do_not_nest(THREES, TWOS)), (FULL, do_not_nest(THREES, TWOS))),
    ),
    "valid padding": case(
        stem,
        relu,
        lambda: conv(padding=0),
        remain=spread(FULL, do_not_nest("3x3 patches of 2x2", TWOS)),
    ),
    "average pooling of a masked gradient": case(
        stem, relu, lambda: nn.AvgPool2d(2), relu, conv, remain=spread(HALF, POOLED)
    ),
    "average pooling of a residual block": case(
        stem, lambda: nn.AvgPool2d(2), lambda: Residual(conv()), conv, remain=spread(HALF, POOLED)
    ),
    "overlapping average pooling": case(
        stem,
        relu,
        lambda: nn.AvgPool2d(3, 2, 1),
        conv,
        remain=((HALF, "avg_pool2d_backward reads it pixel by pixel"), *MASKED),
    ),
    "average pooling that overhangs": case(
        stem,
        relu,
        lambda: nn.AvgPool2d(3, ceil_mode=True),
        conv,
        remain=(((2, 4, 3, 3), "avg_pool2d_backward reads it pixel by pixel"), *MASKED),
    ),
    "adaptive pooling to unequal windows": case(
        stem,
        relu,
        lambda: nn.AdaptiveAvgPool2d(3),
        conv,
        remain=(((2, 4, 3, 3), "_adaptive_avg_pool2d_backward reads it pixel by pixel"), *MASKED),
    ),
    "average pooling of columns alone": case(
        stem,
        relu,
        conv,
        pool=nn.AvgPool2d((8, 1)),
        remain=(
            ((2, 4, 1, 8), do_not_nest("1x8 patches of 8x1", TWOS)),
            (FULL, do_not_nest("1x8 patches of 8x1", TWOS)),
        ),
    ),
    "a linear layer over all pixels": case(stem, relu, conv, relu, pool=nn.Identity(), remain=MASKED),
    "pooling to a few pixels": case(
        stem,
        relu,
        conv,
        pool=nn.AdaptiveAvgPool2d(2),
        remain=(((2, 4, 2, 2), "reshape computes it at full resolution"),),
    ),
    "a gate a pixel": case(
        stem,
        relu,
        SpatialGate,
        conv,
        remain=spread(
            FULL,
            "sum reads it pixel by pixel",
            ((2, 1, 8, 8), JOINS),
            ((2, 1, 8, 8), JOINS),
        ),
    ),
    "r = 1": case(
        stem,
        relu,
        conv,
        relu,
        conv,
        r={"2": 1},
        remain=spread(FULL, "channel_mix reads it pixel by pixel", *MASKED),
    ),
    "a join with a gradient at full resolution": case(
        stem,
        relu,
        lambda: Residual(conv()),
        conv,
        exact=["2.body.0"],
        remain=spread(
            FULL,
            "2.body.0 is trained exactly: its weight gradient reads every pixel",
            (FULL, JOINS),
            (FULL, JOINS),
            (FULL, JOINS),
        ),
    ),
    "rows cut off": case(
        stem,
        relu,
        lambda: Apply(lambda x: x[:, :, 1:]),
        conv,
        remain=(((2, 4, 7, 8), "slice_scatter reads it pixel by pixel"), *MASKED),
    ),
}


def remaining(step: Step) -> tuple[tuple[Shape, str], ...]:
    return tuple((found.shape, found.reason) for found in step.log[-1].materialised)


def assert_log_is_true(step: Step, grids: set[Shape]) -> None:
    """Gradients as large as a forward map exist where the log says so and nowhere else; small maps aside."""
    gradients = Crossing(step).gradients
    forward = [node for node in step.body.graph.nodes if node.op == "call_function" and node not in set(gradients)]
    largest_grid = max((rows * cols for rows, cols in grids), default=1)
    sizes = {size for size in map(_size, forward) if size and size[0] * size[1] > largest_grid}
    listed = [found.node for found in step.log[-1].materialised if found.shape[2:] in sizes]
    assert [node.name for node in gradients if _size(node) in sizes] == listed


def _size(node: fx.Node) -> Shape:
    value = node.meta.get("val")
    return tuple(value.shape[2:]) if isinstance(value, Tensor) and value.dim() == 4 else ()


OTHERS = {  # of the networks above, those that take a path which one before them takes
    *(f"activation: {name}" for name in ("relu6", "hardtanh", "hardsigmoid", "gelu", "elu", "selu", "mish", "tanh")),
    "batch norm, eval, frozen", "batch norm, train, without affine", "squeeze-excite at the end", "residual, two deep",
    "residual, batch norm, train", "residual with layer scale", "concatenation", "split", "product of two branches",
    "average pooling with its own divisor", "average pooling of a whole map", "adaptive pooling", "dilated",
    "fine over coarse", "a map of one row", "a map of one pixel", "a block of MobileNetV3",
}  # fmt: skip
OFTEN = [name for name in NETS if name not in OTHERS]


def assert_shapes_are_true(step: Step) -> None:
    """What a pass infers for its nodes is what they give."""
    for node, value in node_values(step).items():
        if isinstance(value, Tensor):
            assert node.meta["val"].shape == value.shape, node.name


@pytest.mark.slow
@pytest.mark.parametrize("name", often([*NETS, *MATERIALISING], [*OFTEN, *MATERIALISING]))
def test_numbers_and_what_remains(name):
    """Float64 in eager before and after, here and through the passes behind; the log of what remains, and its truth."""
    given = (NETS | MATERIALISING)[name]
    step = given.step()
    before = numbers(step)
    grids = {_size(node) for node in nodes(step, PATCH_MEAN)}
    Sink().run(step)
    assert_same_numbers(before, numbers(step), relative=REORDERED)
    assert_shapes_are_true(step)
    assert_log_is_true(step, grids)
    assert remaining(step) == given.remain
    assert_second_run_changes_nothing(Sink(), step)
    applied(step, PackMasks(), Hoist())
    assert_same_numbers(before, numbers(step), relative=REORDERED)


@pytest.mark.slow
def test_sinks_through_masks_and_scales():
    """The golden pair: a strided convolution behind ReLU and BatchNorm, both convolutions filtered."""
    step = case(
        lambda: plain(3, 2), lambda: nn.BatchNorm2d(2), relu, lambda: conv(2, 2, stride=2), shape=(1, 3, 4, 4)
    ).step()
    assert_golden("sink.before", step)
    assert_golden("sink.after", Sink().run(step))
    assert remaining(step) == ()
    assert site_names(step), "nothing was rewritten"


@pytest.mark.slow
def test_sinks_through_a_join():
    """The golden pair of a residual join: the mask behind it multiplies the one before."""
    step = case(stem, relu, lambda: Residual(conv()), shape=(1, 3, 4, 4)).step()
    assert_golden("sink.join.before", step)
    assert_golden("sink.join.after", Sink().run(step))
    assert remaining(step) == ()


@pytest.mark.slow
def test_more_joins_than_allowed():
    """One term a join: beyond the limit the gradient is kept, once, and the numbers stay."""
    step = case(stem, *[lambda: Residual(conv())] * (MOST_TERMS + 1)).step()
    before = numbers(step)
    Sink().run(step)
    assert_same_numbers(before, numbers(step), relative=REORDERED)
    assert {reason for _, reason in remaining(step)} == {MANY}
    assert {shape for shape, _ in remaining(step)} == {FULL}


@pytest.mark.slow
def test_joins_without_masks_do_not_count():
    """Pre-activation and linear bottlenecks add patch values: any depth is one term."""
    step = case(stem, *[lambda: Residual(conv(), act=nn.Identity())] * (MOST_TERMS + 2)).step()
    before = numbers(step)
    Sink().run(step)
    assert remaining(step) == ()
    assert_same_numbers(before, numbers(step), relative=REORDERED)


@pytest.mark.slow
def test_every_mean_and_sum_of_a_sunk_gradient_is_a_site():
    step = case(stem, norm, relu, conv).step()
    means = len(nodes(step, PATCH_MEAN))
    assert means == 2
    Sink().run(step)
    assert not nodes(step, PATCH_MEAN)
    assert len(site_names(step)) == means + 2 + 2  # biases of both convolutions, scale and shift of the norm


def test_finds_nothing_in_an_exact_step():
    step = network_step(*BEFORE, exact=True)
    before = text(step)
    Sink().run(step)
    assert site_names(step) == []
    assert text(step) == before


def test_an_exact_step_sums_patches_no_less():
    """Without any filtered layer the head's gradient is still one value a map: a bias takes area times that value."""
    step = applied(filtered(with_head(stem()), SHAPE, exact=["0"]), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(Sink().run(step)), relative=REORDERED)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_any_batch(batch, batchnorm):
    """A constant of one sample must not be taken for one of the batch."""
    step = case(
        lambda: plain(3), norm, relu, SqueezeExcite, plain, norm, relu, shape=(batch, 3, 8, 8), batchnorm=batchnorm
    ).step()
    before = numbers(step)
    assert_same_numbers(before, numbers(Sink().run(step)), relative=REORDERED)
    assert remaining(step) == ()


@pytest.mark.slow
def test_a_slice_with_a_step_as_a_factor():
    """x[:, ::2] * g: the statistic is of the sliced map, not of a whole one cut elsewhere."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.gate, self.head = conv(3, 4), conv(3, 8), nn.Linear(4, 2)

        def forward(self, x):
            return self.head((self.stem(x) * self.gate(x)[:, ::2]).mean((2, 3)))

    step = applied(filtered(Model(), SHAPE, frozen=["gate"]), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(Sink().run(step)), relative=REORDERED)
    assert remaining(step) == ()


@pytest.mark.slow
def test_a_mask_of_one_channel():
    """where(score > 0, x, 0) with a score a pixel, then ReLU: the product of a narrow mask and a wide one."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a_score, self.body = nn.Conv2d(4, 1, 1), conv()

        def forward(self, x):
            return torch.where(self.a_score(x) > 0, self.body(x).relu(), 0.0)

    step = applied(filtered(with_head(conv(3, 4), Gated(), conv()), SHAPE, frozen=["1.a_score"]), *BEFORE)
    before = numbers(step)
    assert_same_numbers(before, numbers(Sink().run(step)), relative=REORDERED)
    assert remaining(step) == ()
    assert_shapes_are_true(step)


@pytest.mark.slow
def test_in_float32_the_graph_runs_as_it_is_written():
    step = case(stem, norm, nn.Hardswish, SqueezeExcite, lambda: Residual(conv()), conv).step()
    before = numbers(step, torch.float32)
    after = numbers(Sink().run(step), torch.float32)
    assert_same_numbers(before, after, torch.float32, relative=1e-5)  # float32 through four layers
    assert {value.dtype for value in after.values()} == {torch.float32}


@pytest.mark.slow
@pytest.mark.parametrize(("joins", "is_dear"), [(3, False), (6, True)])
def test_statistics_that_outweigh_their_map(joins, is_dear):
    """A trained batch norm behind k joins wants k sums a patch: at r = 2, four of them weigh as much as the map."""

    def block():
        return Residual(conv(), norm())

    step = case(stem, *[block] * joins, batchnorm="eval", r=2).step()
    before = numbers(step)
    Sink().run(step)
    assert_same_numbers(before, numbers(step), relative=REORDERED)
    dear = [reason for _, reason in remaining(step) if "would take more bytes than the map they are of" in reason]
    assert bool(dear) == is_dear


@pytest.mark.parametrize(("axes", "shape"), [([0, 2, 3], (3,)), ([0, 1, 2, 3], ())])
def test_the_sum_of_nothing_is_zero(axes, shape):
    """Masks that exclude each other leave a form without terms."""
    step = case(stem).step()
    write = Writer(step.body.graph)
    write.at(step.body.graph.output_node())
    total = Evaluation(Algebra(write)).total(Form((), (2, 3, 4, 4)), axes, False)
    assert shape_of(total) == shape
    assert not node_values(step)[total].any()
