"""The order of the passes: one table, a stage a line, with the reason for its place and the programs it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from gfcompile.errors import UserError
from gfcompile.geometry.winograd import Choose, choose_edge
from gfcompile.optimizers import SGD, Optimizer
from gfcompile.passes.append_optimizer import AppendOptimizer
from gfcompile.passes.base import Pass
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.channels_last import ChannelsLast
from gfcompile.passes.clip_gradients import ClipGradients
from gfcompile.passes.draw_channels import DrawChannels
from gfcompile.passes.filter import Filter
from gfcompile.passes.fold_batchnorm import FoldBatchnorm
from gfcompile.passes.fold_frozen import FoldFrozen
from gfcompile.passes.hoist import Hoist
from gfcompile.passes.merge_equal import MergeEqual
from gfcompile.passes.pack_masks import PackMasks
from gfcompile.passes.remove_dead import RemoveDead
from gfcompile.passes.select import Select
from gfcompile.passes.sink import Sink
from gfcompile.passes.static_moves import StaticMoves
from gfcompile.passes.winograd import Winograd
from gfcompile.step import Step


class When(StrEnum):
    """Which programs a stage is part of."""

    ALWAYS = "always"
    BACKWARD = "with a backward pass"
    CALCULUS = "with the patch calculus"  # exact, so that a step with it and one without can be compared
    OPTIMIZER = "with an optimizer"
    WINOGRAD = "where Winograd's algorithm is allowed"


@dataclass(frozen=True)
class Variant:
    """A program: with or without a backward pass, the patch calculus, an optimizer, a choice among algorithms.

    Without the calculus: gradient filtering as published, spread and averaged at every layer. `winograd` chooses;
    without it, every convolution is its plain sum.
    """

    backward: bool = True
    calculus: bool = True
    optimizer: Optimizer | None = None
    winograd: Choose | None = choose_edge

    def has(self, when: When) -> bool:
        """Whether stages for this are part of it."""
        return {
            When.ALWAYS: True,
            When.BACKWARD: self.backward,
            When.CALCULUS: self.backward and self.calculus,
            When.OPTIMIZER: self.optimizer is not None,
            When.WINOGRAD: self.winograd is not None,
        }[when]


@dataclass(frozen=True)
class Stage:
    """A pass with its default options, why it stands here, and when it does; `options` gives it a variant's options."""

    rewrite: Pass
    why: str
    when: When = When.ALWAYS
    options: Callable[[Variant], Pass] | None = None

    def of(self, variant: Variant) -> Pass:
        """The pass as the variant wants it."""
        return self.rewrite if self.options is None else self.options(variant)


def _clip(variant: Variant) -> Pass:
    optimizer = variant.optimizer or SGD()
    return ClipGradients(optimizer.clip_norm, optimizer.clip_value)


_FINAL = "the gradients are final, and lowering sees the whole step"
STAGES = (
    Stage(StaticMoves(), "first: it reads the strides of the trace"),
    Stage(Canonicalize(), "early: later passes look for few spellings"),
    Stage(Select(), "reads the traced backward, before anything moves", When.BACKWARD),
    Stage(Filter(), "expands what was selected", When.BACKWARD),
    Stage(DrawChannels(), "of what filtering leaves; hoist then keeps only the drawn channels", When.BACKWARD),
    Stage(RemoveDead(), "the unfiltered operands are free now", When.BACKWARD),
    Stage(MergeEqual(), "so that equal statistics are one", When.CALCULUS),
    Stage(Sink(), "gradients meet their patch means without pixels", When.CALCULUS),
    Stage(PackMasks(), "what is still kept of masks, in its smallest form", When.CALCULUS),
    Stage(Hoist(), "last on this grid: it only reorders", When.BACKWARD),
    Stage(ClipGradients(), _FINAL, When.OPTIMIZER, _clip),
    Stage(AppendOptimizer(), _FINAL, When.OPTIMIZER, lambda variant: AppendOptimizer(variant.optimizer or SGD())),
    Stage(FoldBatchnorm(), "needs convolutions as traced"),
    Stage(FoldFrozen(), "scales and shifts become constants"),
    Stage(RemoveDead(), "what was folded"),
    Stage(ChannelsLast(), "after every pass that thinks in NCHW"),
    Stage(
        Winograd(),
        "chooses among convolutions as they will run",
        When.WINOGRAD,
        lambda variant: Winograd(variant.winograd or choose_edge),
    ),
    Stage(FoldFrozen(), "frozen weights are packed, or transformed, now, once"),
    Stage(RemoveDead(), "their unpacked forms"),
)


def training_passes(optimizer: Optimizer, calculus: bool = True, winograd: Choose | None = choose_edge) -> list[Pass]:
    """Forward, backward, update."""
    return _passes(Variant(True, calculus, optimizer, winograd))


def gradient_passes(calculus: bool = True, winograd: Choose | None = choose_edge) -> list[Pass]:
    """The same gradients, returned instead of applied."""
    return _passes(Variant(True, calculus, None, winograd))


def prediction_passes(winograd: Choose | None = choose_edge) -> list[Pass]:
    """The forward pass alone."""
    return _passes(Variant(backward=False, winograd=winograd))


def filtering_passes(calculus: bool = True) -> list[Pass]:
    """What makes the gradients: the stages before the optimizer's."""
    before = takewhile(lambda stage: stage.when is not When.OPTIMIZER, STAGES)
    return _passes(Variant(calculus=calculus), tuple(before))


def _passes(variant: Variant, stages: Sequence[Stage] = STAGES) -> list[Pass]:
    return [stage.of(variant) for stage in stages if variant.has(stage.when)]


FILTERING: Sequence[Pass] = tuple(filtering_passes())


def passes_by_name() -> dict[str, Pass]:
    """Every pass with its default options, in the order of its first place."""
    found: dict[str, Pass] = {}
    for stage in STAGES:
        found.setdefault(stage.rewrite.name, stage.rewrite)
    return found


def find_pass(name: str) -> Pass:
    """The pass of this name, with its default options."""
    known = passes_by_name()
    if name not in known:
        raise UserError(f"pass '{name}': no such pass; there are: {', '.join(known)}")
    return known[name]


def run(step: Step, passes: Sequence[Pass], observe: Callable[[int, str, Step], None] | None = None) -> Step:
    """Apply the passes in order; `observe` sees the step before the first (index 0) and after each."""
    if observe is not None:
        observe(0, "traced", step)
    for index, rewrite in enumerate(passes, 1):
        step = rewrite.run(step)
        if observe is not None:
            observe(index, rewrite.name, step)
    return step
