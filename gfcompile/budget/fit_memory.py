"""Sparse updates from a budget of bytes: as many layers as fit, smaller shares in later ones (`--sparse auto`).

The last N convolutions are trained. Their shares of drawn channels fall evenly, on a logarithmic scale, to a quarter
from the first to the last, and are as large as lets a step update 2 % of the model's convolution weights, as published
(docs/method.md, section 5); one channel per layer is the least. N is the largest number whose step keeps no more than
the budget: found on the graph, and counted again on the placed program. Where even one layer keeps more, fewer of its
channels are drawn.

More layers have smaller shares, so they may keep less, and N is not found by halving alone: a larger number is left out
only if all that the layers counted so far draw less there would not make it fit. That takes for granted that nothing
but drawn inputs is kept less of when more layers are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from gfcompile.budget.traces import Traces
from gfcompile.codegen.lower import lower
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.errors import UserError
from gfcompile.geometry.winograd import choose_edge
from gfcompile.job import Job, Traced
from gfcompile.passes import pipeline
from gfcompile.plan import Layer, Plan, PlannedLayer, make_plan, matches
from gfcompile.progress import Progress, silent
from gfcompile.report.counts import kept_bytes
from gfcompile.report.kept import kept_tensors
from gfcompile.report.sparse import make_sparse
from gfcompile.settings.schema import AUTO, Request
from gfcompile.settings.text import by_pattern, read_bytes
from gfcompile.settings.words import option
from gfcompile.stages import allowed_algorithms, look_at, make_scheduler, trace
from gfcompile.step import Step
from gfcompile.targets import Target

T = TypeVar("T")
SHARE = 0.02  # of all convolution weights, updated per step
FALL = 0.25  # the last layer's share of channels, of the first one's
HALVINGS = 24


def read_sparse(
    given: Mapping[str, float | str], memory: int | str | None, strategy: str = "step", has_plan: bool = False
) -> tuple[dict[str, float] | None, int | None]:
    """Shares by name pattern, and the bytes that "auto" may keep; None for what was not asked for."""
    if strategy != "step" and not given and not has_plan:
        raise UserError(
            f"{option('sparse_strategy', strategy)}: says when channels are drawn; give {option('sparse')} too"
        )
    shares = {pattern: share for pattern, share in given.items() if (pattern, share) != ("*", AUTO)}
    if len(shares) == len(given):
        if memory is not None:
            raise UserError(f"{option('memory')}: is a budget for {option('sparse', AUTO)}; give both, or neither")
        return (shares or None), None  # type: ignore[return-value] # what is no number, Request refuses
    if has_plan:
        raise UserError(
            f"{option('plan')}: says what is trained; leave out {option('sparse', AUTO)} and {option('memory')}"
        )
    if memory is None:
        raise UserError(
            f"{option('sparse', AUTO)}: needs a budget; give {option('memory')}, as in {option('memory', '256KB')}"
        )
    return (shares or None), read_bytes(memory)  # type: ignore[return-value]


def fit_memory(job: Job, memory: int, target: Target, progress: Progress = silent) -> Job:
    """The job with layers and shares chosen; its own --sparse patterns hold, --layers is the most it may train."""
    if job.request.patterns:
        raise UserError(
            f"{option('train')}: {option('sparse', AUTO)} chooses the layers; leave {option('train')} out, or give"
            " shares"
            f" with {option('sparse')}"
        )
    surveyed = look_at(job, progress)
    layers = surveyed.layers
    every = make_plan(layers, replace(job.request, layers=None, sparse=None)).convolutions
    if not every:
        raise UserError(
            f"{option('sparse', AUTO)}: the model has no convolutions that count; leave out {option('sparse')} and"
            f" {option('memory')}"
        )
    make_plan(layers, job.request)  # wrong patterns are told of before anything is counted
    most = job.request.layers or len(every)
    search = Search(job, layers, target, progress)
    traces = Traces(surveyed, search.planned(most).request, progress)
    traces.check(search.planned(1).request)
    search.trace = lambda job: traces(job.request)
    chosen = search.choose(most, memory)
    if traces.are_cut and placed_bytes(traces.own(chosen.request), search.scheduler) > memory:
        progress("that keeps more as it is compiled: counting again, with a trace for every number of layers")
        traces.are_cut = False
        search.kept.clear()
        chosen = search.choose(most, memory)
    return chosen


class Search:
    """Steps of the last so many convolutions, each counted once."""

    def __init__(self, job: Job, layers: Sequence[Layer], target: Target, progress: Progress) -> None:
        self.job, self.layers, self.target, self.progress = job, layers, target, progress
        self.jobs: dict[int, Job] = {}
        self.inputs: dict[int, dict[str, int]] = {}
        self.kept: dict[int, int] = {}  # bytes, of those counted so far
        self.trace: Callable[[Job], Traced] = trace
        self.scheduler = make_scheduler(target)

    def planned(self, count: int) -> Job:
        """The job with this many layers trained; each is made once."""
        if count not in self.jobs:
            self.jobs[count] = replace(self.job, request=with_shares(self.layers, self.job.request, count))
        return self.jobs[count]

    def keeps(self, count: int) -> int:
        """Bytes kept for the backward pass with this many layers; counted once."""
        if count not in self.kept:
            self.progress(f"counting what is kept: {count} layers")
            self.kept[count] = self.count(self.planned(count))
        return self.kept[count]

    def may_fit(self, count: int, memory: int) -> bool:
        """Not where fewer layers keep too much, however much less of their inputs is drawn here."""
        known = [(kept, self._inputs(fewer)) for fewer, kept in self.kept.items() if fewer <= count]
        if any(kept - sum(inputs.values()) > memory for kept, inputs in known):  # planning `count` takes longer
            return False
        here = self._inputs(count)
        saved = (sum(max(0, size - here.get(name, 0)) for name, size in inputs.items()) for _, inputs in known)
        return all(kept - less <= memory for (kept, _), less in zip(known, saved, strict=True))

    def choose(self, most: int, memory: int) -> Job:
        """As many layers as fit; where one does not, fewer of its channels."""
        count = self.largest(most, memory)
        return self.planned(count) if count else self.narrowed(memory)

    def largest(self, most: int, memory: int) -> int:
        """The largest number up to `most` that fits, 0 for none."""
        _halve(most, lambda count: self.keeps(count) <= memory)  # what is counted here rules out most of the rest
        for count in range(most, 0, -1):
            if not self.may_fit(count, memory) or self.keeps(count) > memory:
                continue
            if self.place(self.planned(count)) <= memory:
                return count
        return 0

    def narrowed(self, memory: int) -> Job:
        """The last convolution with as many channels as fit, fewer than its share would be."""
        alone, own = self.planned(1), self.job.request.sparse or {}
        sparse = make_plan(self.layers, alone.request).sparse
        layer = next((each for each in sparse if not any(matches(each.name, pattern) for pattern in own)), None)

        def drawing(channels: int) -> Job:
            if layer is None or layer.geometry is None:
                return alone
            shares = {**(alone.request.sparse or {}), layer.name: channels / layer.geometry.in_channels}
            return replace(alone, request=replace(alone.request, sparse=shares))

        wide = layer.channels - 1 if layer is not None and layer.channels is not None else 0
        channels = _halve(wide, lambda number: self.count(drawing(number)) <= memory)
        while channels and self.place(drawing(channels)) > memory:
            channels -= 1
        if channels:
            return drawing(channels)
        remedy = f"give that much, a larger {option('r')}, or a smaller {option('batch')}"
        if self.job.request.exact:
            remedy = f"give that much or a smaller {option('batch')}, or leave {option('exact')} out"
        least = self.place(drawing(1))
        raise UserError(
            f"{option('memory', memory)}: the last convolution alone keeps {least} bytes at least; {remedy}"
        )

    def count(self, job: Job) -> int:
        """What the rewritten graph keeps."""
        return sum(kept.bytes for kept in kept_tensors(_rewritten(self.trace(job), self.target)))

    def place(self, job: Job) -> int:
        """Bytes of the arena that the job needs."""
        return placed_bytes(self.trace(job), self.scheduler)

    def _inputs(self, count: int) -> dict[str, int]:
        """Bytes of what is drawn of each layer's input."""
        if count not in self.inputs:
            plan = make_plan(self.layers, self.planned(count).request)
            self.inputs[count] = {layer.name: _input_bytes(plan, layer) for layer in plan.trained}
        return self.inputs[count]


def _input_bytes(plan: Plan, layer: PlannedLayer) -> int:
    if layer.geometry is None:
        return 0
    # the reference formulas refuse layers later: those keep whole inputs
    return kept_bytes(layer.geometry, None if plan.reference else layer.r, layer.channels)


def _halve(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, 0 for none, where a larger one never fits if a smaller does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def with_shares(layers: Sequence[Layer], request: Request, count: int) -> Request:
    """The last `count` convolutions, with the largest shares that keep to SHARE."""
    plan = make_plan(layers, replace(request, layers=count, r=None, sparse=None))
    chosen, names = plan.convolutions, [layer.name for layer in plan.trained]

    def fitting(settings: Mapping[str, T] | None) -> dict[str, T]:  # a name that is not trained now would be refused
        given = (settings or {}).items()
        return {key: value for key, value in given if key == "*" or any(matches(name, key) for name in names)}

    own = fitting(request.sparse)
    request = replace(request, layers=count, r=fitting(request.patches))

    def shares(first: float) -> Request:
        falling = [first * FALL ** (at / max(1, len(chosen) - 1)) for at in range(len(chosen))]
        return replace(request, sparse=by_pattern([*zip(chosen, falling, strict=True), *own.items()]))

    low, high = 1e-6, 1.0
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if _keeps_to_share(layers, shares(middle)) else (low, middle)
    return shares(low)


def _keeps_to_share(layers: Sequence[Layer], request: Request) -> bool:
    counted = make_sparse(layers, make_plan(layers, request))
    return counted is not None and counted.updated_weights <= SHARE * counted.convolution_weights


def _rewritten(traced: Traced, target: Target) -> Step:
    """The training step after all passes."""
    job = traced.job
    winograd = allowed_algorithms(job, target.kind, choose_edge)
    return pipeline.run(traced.training, pipeline.training_passes(job.optimizer, job.calculus, winograd))


def placed_bytes(traced: Traced, scheduler: Scheduler) -> int:
    """What the compiled training step keeps for its backward pass."""
    step = _rewritten(traced, scheduler.target)
    return make_program("train", lower(step), step, scheduler).saved_bytes
