"""The order of the passes, a line each with the reason for its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from gfcompile.geometry.winograd import Choose, choose_edge
from gfcompile.optimizers import Optimizer
from gfcompile.passes.append_optimizer import AppendOptimizer
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


class AnyPass(Protocol):
    """What the pipeline needs of a pass."""

    name: ClassVar[str]

    def run(self, step: Step) -> Step: ...


FILTERING: Sequence[AnyPass] = (
    StaticMoves(),  # first: it reads the strides of the trace
    Canonicalize(),  # early: later passes look for few spellings
    Select(),  # reads the traced backward, before anything moves
    Filter(),  # expands what was selected
    DrawChannels(),  # of what filtering leaves; hoist then keeps only the drawn channels
    RemoveDead(),  # the unfiltered operands are free now
    MergeEqual(),  # so that equal statistics are one
    Sink(),  # gradients meet their patch means without pixels
    PackMasks(),  # what is still kept of masks, in its smallest form
    Hoist(),  # last on this grid: it only reorders
)
CALCULUS = (MergeEqual, Sink, PackMasks)  # exact, so that a step with them and one without can be compared
LOWERING: Sequence[AnyPass] = (
    FoldBatchnorm(),  # needs convolutions as traced
    FoldFrozen(),  # scales and shifts become constants
    RemoveDead(),  # what was folded
    ChannelsLast(),  # after every pass that thinks in NCHW
    Winograd(),  # chooses among convolutions as they will run
    FoldFrozen(),  # frozen weights are packed, or transformed, now, once
    RemoveDead(),  # their unpacked forms
)


def training_passes(
    optimizer: Optimizer, calculus: bool = True, winograd: Choose | None = choose_edge
) -> list[AnyPass]:
    """Forward, backward, update."""
    clip = ClipGradients(optimizer.clip_norm, optimizer.clip_value)
    return [*filtering_passes(calculus), clip, AppendOptimizer(optimizer), *lowering_passes(winograd)]


def gradient_passes(calculus: bool = True, winograd: Choose | None = choose_edge) -> list[AnyPass]:
    """The same gradients, returned instead of applied."""
    return [*filtering_passes(calculus), *lowering_passes(winograd)]


def filtering_passes(calculus: bool) -> list[AnyPass]:
    """Without the calculus: gradient filtering as published, spread and averaged at every layer."""
    return [each for each in FILTERING if calculus or not isinstance(each, CALCULUS)]


def lowering_passes(winograd: Choose | None) -> list[AnyPass]:
    """`winograd` chooses; without it, every convolution is its plain sum."""
    chosen = [] if winograd is None else [Winograd(winograd)]
    return [one for each in LOWERING for one in (chosen if isinstance(each, Winograd) else [each])]


def prediction_passes(winograd: Choose | None = choose_edge) -> list[AnyPass]:
    """The forward pass alone."""
    return [StaticMoves(), Canonicalize(), *lowering_passes(winograd)]


def run(step: Step, passes: Sequence[AnyPass], observe: Callable[[int, str, Step], None] | None = None) -> Step:
    """Apply the passes in order; `observe` sees the step before the first (index 0) and after each."""
    if observe is not None:
        observe(0, "traced", step)
    for index, rewrite in enumerate(passes, 1):
        step = rewrite.run(step)
        if observe is not None:
            observe(index, rewrite.name, step)
    return step
