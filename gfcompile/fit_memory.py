"""Sparse updates from a budget of bytes: as many layers as fit, smaller shares in later ones (`--sparse auto`).

The last N convolutions are trained. Their shares of drawn channels fall evenly, on a logarithmic scale, to a quarter
from the first to the last, and are as large as lets a step update 2 % of the model's convolution weights, as published
(METHOD section 5); one channel a layer is the least. N is the largest number whose step keeps no more than the budget:
found on the graph, and counted again on the placed program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gfcompile import pipeline
from gfcompile.codegen.lower import lower
from gfcompile.codegen.program import make_program
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.compiler import Job, allowed_algorithms, make_survey, trace
from gfcompile.errors import UserError
from gfcompile.plan import Layer, Request, make_plan, matches
from gfcompile.report.kept import kept_tensors
from gfcompile.report.sparse import make_sparse
from gfcompile.settings import read_bytes
from gfcompile.step import Step
from gfcompile.targets import Target
from gfcompile.winograd import choose_edge

AUTO = "auto"
SHARE = 0.02  # of all convolution weights, updated a step
FALL = 0.25  # the last layer's share of channels, of the first one's
HALVINGS = 24


def read_sparse(
    given: Mapping[str, float | str], memory: int | str | None
) -> tuple[dict[str, float] | None, int | None]:
    """Shares by name pattern, and the bytes that "auto" may keep; None for what was not asked for."""
    shares = {pattern: share for pattern, share in given.items() if (pattern, share) != ("*", AUTO)}
    if len(shares) == len(given):
        if memory is not None:
            raise UserError("--memory: is a budget for --sparse auto; give both, or neither")
        return (shares or None), None  # type: ignore[return-value] # what is no number, Request refuses
    if memory is None:
        raise UserError("--sparse auto: needs a budget; give --memory, as in --sparse auto --memory 256KB")
    return (shares or None), read_bytes("--memory", memory)  # type: ignore[return-value]


def fit_memory(job: Job, memory: int, target: Target, progress: Callable[[str], None] = lambda _: None) -> Job:
    """The job with layers and shares chosen; its own --sparse patterns hold, --layers is the most it may train."""
    if job.request.train:
        raise UserError("--train: --sparse auto chooses the layers; leave --train out, or give shares with --sparse")
    layers = make_survey(job)
    most = job.request.layers or len(make_plan(layers, replace(job.request, sparse=None)).convolutions)
    make_plan(layers, job.request)  # wrong patterns are told of before anything is counted

    def planned(count: int) -> Job:
        return replace(job, request=with_shares(layers, job.request, count))

    def keeps(count: int) -> int:
        progress(f"counting what is kept: {count} layers")
        return sum(kept.bytes for kept in kept_tensors(_rewritten(planned(count), target)))

    count = _largest(most, lambda number: keeps(number) <= memory)
    while count and placed_bytes(planned(count), target) > memory:
        count -= 1
    if not count:
        least = placed_bytes(planned(1), target)
        raise UserError(
            f"--memory {memory}: the last convolution alone keeps {least} bytes; give that much, a larger --r, or a"
            " smaller --batch"
        )
    return planned(count)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, 0 for none; a larger one never fits where a smaller does not."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def with_shares(layers: Sequence[Layer], request: Request, count: int) -> Request:
    """The last `count` convolutions, with the largest shares that keep to SHARE."""
    chosen = make_plan(layers, replace(request, layers=count, sparse=None)).convolutions
    given = (request.sparse or {}).items()
    own = {pattern: share for pattern, share in given if any(matches(name, pattern) for name in chosen)}
    request = replace(request, layers=count)

    def shares(first: float) -> Request:
        falling = [first * FALL ** (at / max(1, len(chosen) - 1)) for at in range(len(chosen))]
        return replace(request, sparse={**dict(zip(chosen, falling, strict=True)), **own})

    low, high = 1e-6, 1.0
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        counted = make_sparse(layers, make_plan(layers, shares(middle)))
        low, high = (middle, high) if counted is not None and counted["share"] <= SHARE else (low, middle)
    return shares(low)


def _rewritten(job: Job, target: Target) -> Step:
    """The training step after all passes."""
    winograd = allowed_algorithms(job, target.kind, choose_edge)
    return pipeline.run(trace(job).training, pipeline.training_passes(job.optimizer, job.calculus, winograd))


def placed_bytes(job: Job, target: Target) -> int:
    """What the compiled training step keeps for its backward pass."""
    step = _rewritten(job, target)
    return make_program("train", lower(step), step, Scheduler(target)).saved_bytes
