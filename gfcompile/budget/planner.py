"""The best plan within a budget of memory and arithmetic.

Which plans are candidates does not depend on the budget: the front of `front.py`. The plan for a budget is the
candidate with the best score whose counted FLOPs and *placed arena* keep to it. Placing takes seconds, so of a front of
more than ALL_PLACED only those are asked that no other beats in bytes and score, by halving: none takes more than it
may, and more memory never gives a worse score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gfcompile.budget.arenas import Arenas, Placed, key_of
from gfcompile.budget.asking import Asking
from gfcompile.budget.choices import FROZEN, TRAINED, as_request
from gfcompile.budget.convolution_calls import calls_by_layer
from gfcompile.budget.front import Candidate, find_front, most_asked, search, spread, staircase
from gfcompile.budget.prices import Prices, price
from gfcompile.budget.score import POINTS, Scores, estimated_scores, measured_scores
from gfcompile.budget.traces import Traces
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.errors import UserError
from gfcompile.interrupts import noting
from gfcompile.job import Job
from gfcompile.noise.measure import measure, measure_plan
from gfcompile.noise.quality import check_batch
from gfcompile.noise.similarity import Likeness
from gfcompile.plan import make_plan
from gfcompile.progress import Progress, silent
from gfcompile.report.units import in_bytes, in_flops
from gfcompile.settings.planning import Choice
from gfcompile.settings.words import either, option
from gfcompile.stages import look_at
from gfcompile.targets import Target

ALL_PLACED = 64  # candidates
SHOWN = 48  # candidates
UNMEASURED = "the search had ended; the gradient of the whole plan was not measured, as somebody stopped it"
Batch = tuple[tuple[Tensor, ...], Tensor]


@dataclass(frozen=True)
class Row:
    """A candidate. `bytes` are those kept for the backward pass, an estimate; `placed` is what it takes once compiled,
    None where nobody had to know."""

    choices: Mapping[str, Choice]
    bytes: int
    flops: int
    score: float
    placed: Placed | None


@dataclass(frozen=True)
class Found:
    """The chosen plan among all candidates, best score first. `whole` is its gradient on the user's batch, all layers
    filtered as planned, against the exact one; None where it was not measured. `stopped` says how far a search was that
    somebody ended."""

    rows: Sequence[Row]
    chosen: Row
    prices: Prices
    scores: Scores
    memory: int
    step_flops: int | None
    target: str
    batch: int
    whole: Likeness | None = None
    stopped: str | None = None


class Stopped(KeyboardInterrupt):
    """Somebody pressed Ctrl-C; `found` is the best plan until then, and says how far the search was."""

    def __init__(self, found: Found) -> None:
        super().__init__(found.stopped)
        self.found = found


class Planner:
    """Prices the layers of a job once; then `find` answers for any budget.

    The job's request says which layers may be trained (`layers`, `train`), and what holds for every plan (batch norms,
    dropout). `data` is a batch to measure gradients on.
    """

    def __init__(
        self,
        job: Job,
        target: Target,
        edges: Sequence[int],
        shares: Sequence[float],
        data: Batch | None = None,
        tuning: Databases = NOTHING_KNOWN,
        progress: Progress = silent,
    ) -> None:
        self.job, self.data, self.progress = job, data, progress
        surveyed = look_at(job, progress)
        plan = make_plan(surveyed.layers, job.request)
        if not plan.convolutions:
            raise UserError(
                f"plan: no convolution may be trained; choose some with {option('layers')} or {option('train')}"
            )
        everything = as_request({layer.name: TRAINED for layer in plan.trained}, job.request)
        traces = Traces(surveyed, everything, progress)
        traced = traces.whole
        calls = calls_by_layer(traced.training)
        chosen = [name for name in plan.convolutions if name in calls]  # others are trained with whose kernel they use
        heads = [layer.name for layer in plan.trained if layer.name not in plan.convolutions]
        if data is not None:
            x, y = data
            self.scores = measured_scores(measure(replace(job, example=x), y, edges or (1,), progress), chosen)
        else:
            self.scores = estimated_scores(job.module, chosen, edges)
        self.prices = price(job, traced, calls, chosen, heads, edges, shares, self.scores, progress)
        front = find_front(self.prices.offers, FROZEN, self.prices.base)
        if not heads:
            front = [each for each in front if each.points or any(choice != FROZEN for choice in each.choices)]
        self.front = front
        progress("tracing what is trained least")
        smallest = min(front, key=lambda each: sum(choice != FROZEN for choice in each.choices))
        traces.check(as_request(self.choices(smallest), job.request))
        self.arenas = Arenas(traces, target, tuning)

    def find(self, memory: int, step_flops: int | None = None) -> Found:
        """Refuses a budget that no plan keeps to, and says what the least is.

        Interrupted, it raises `Stopped`, with the best plan so far, or KeyboardInterrupt where none fits yet.
        """
        affordable = [each for each in self.front if step_flops is None or each.flops <= step_flops]
        if not affordable:
            fewest = min(each.flops for each in self.front)
            raise UserError(
                f"{option('step_flops', in_flops(step_flops or 0))}: the cheapest plan counts {in_flops(fewest)}"
                f" ({fewest});"
                " give that much or more"
            )
        row = affordable if self._places_all else staircase(affordable)
        smallest = staircase(affordable)[-1]
        most = len(row) if self._places_all else min(len(row), most_asked(len(row)) + 1)
        asking = Asking(self.arenas, self.choices, memory, most, self.progress)
        try:
            with noting():
                best = self._search(row, smallest, asking)
                if best is not None and not self._confirm(best):
                    asking = Asking(self.arenas, self.choices, memory, most, self.progress)
                    best = self._search(row, smallest, asking)
                if best is not None:
                    return self._found(best, memory, step_flops)
        except KeyboardInterrupt as stop:
            if asking.best is None:
                raise
            raise Stopped(self._found(asking.best, memory, step_flops, asking.stopped())) from stop
        least = asking.least_bytes  # which this search would find, unlike one that another search has placed
        raise UserError(
            f"{option('memory', in_bytes(memory))}: too little: the frozen forward pass alone takes an arena of"
            f" {in_bytes(asking(smallest).predict_bytes)}, the smallest plan {in_bytes(least)} ({least} bytes);"
            f" give that much or more, or {either('a smaller --batch or --input', 'smaller example_inputs')}"
        )

    def choices(self, candidate: Candidate) -> dict[str, Choice]:
        """A choice for every layer that may be trained, and for the head."""
        chosen = {
            layer: choice
            for layer, choice in zip(self.prices.layers, candidate.choices, strict=True)
            if isinstance(choice, Choice)
        }
        return {**chosen, **dict.fromkeys(self.prices.heads, TRAINED)}

    @property
    def _places_all(self) -> bool:
        return len(self.front) <= ALL_PLACED

    def _search(self, row: Sequence[Candidate], smallest: Candidate, asking: Asking) -> Candidate | None:
        """The smallest is placed first, and ends the search if the forward pass alone takes too much. Of a row whose
        plans are all placed, the best that should fit is next: a good one for whoever stops the search."""
        placed = asking(smallest)
        if placed.predict_bytes > asking.memory:
            return None
        if not self._places_all:
            return search(row, asking.fits)
        room = smallest.bytes + asking.memory - placed.arena_bytes
        for likely in [each for each in row if each.bytes <= room][:1]:
            asking(likely)
        return next(filter(asking.fits, row), None)

    def _confirm(self, best: Candidate) -> bool:
        """Whether it is what the compiler would make of the plan, if nobody has asked yet."""
        choices = self.choices(best)
        if self.arenas.is_confirmed(choices):
            return True
        self.progress("placing the chosen plan from a trace of its own")
        if self.arenas.confirm(choices):
            return True
        self.progress("that takes another arena: searching again, with a trace for every plan")
        return False

    def _known(self, candidate: Candidate) -> Placed | None:
        return self.arenas.known.get(key_of(self.choices(candidate)))

    def _found(self, best: Candidate, memory: int, step_flops: int | None, stopped: str | None = None) -> Found:
        """With the candidates that were placed, and others of the front beside them."""
        shown = {best, *spread(self.front, SHOWN)}
        shown |= {each for each in self.front if self._known(each) is not None}
        rows = {each: self._row(each) for each in self.front if each in shown}
        return Found(
            list(rows.values()),
            rows[best],
            self.prices,
            self.scores,
            memory,
            step_flops,
            self.arenas.target.name,
            self.job.example[0].shape[0],
            stopped=stopped,
        )

    def measured(self, found: Found) -> Found:
        """With its gradient on the user's batch, if there is one."""
        if self.data is None:
            return found
        x, y = self.data
        request = as_request(found.chosen.choices, self.job.request)
        try:
            with noting():
                return replace(found, whole=measure_plan(replace(self.job, example=x, request=request), y))
        except KeyboardInterrupt as stop:
            raise Stopped(replace(found, stopped=UNMEASURED)) from stop

    def _row(self, candidate: Candidate) -> Row:
        score = candidate.points / POINTS
        return Row(self.choices(candidate), candidate.bytes, candidate.flops, score, self._known(candidate))


def make_planner(
    job: Job,
    target: Target,
    edges: Sequence[int],
    shares: Sequence[float],
    data: Batch | None = None,
    tuning: Databases = NOTHING_KNOWN,
    progress: Progress = silent,
    source: str = "data",
) -> Planner:
    """A planner for wishes as a user gives them: checked first. `source` begins the errors about the batch."""
    if data is not None:
        check_batch(replace(job, example=data[0]), data[1], source)
    ordered = sorted(set(edges)), sorted(set(shares), reverse=True)
    return Planner(job, target, *ordered, data, tuning, progress)
