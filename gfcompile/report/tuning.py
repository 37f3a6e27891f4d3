"""Which kernels of a step follow a tuning database, and what was measured when they were tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gfcompile.codegen.tuned.keys import target_key
from gfcompile.geometry.winograd import choose_edge
from gfcompile.graph.open_convolutions import find_open
from gfcompile.report.machine_schema import TunedAlgorithm, TunedKernel, Tuning
from gfcompile.report.units import by_x

if TYPE_CHECKING:
    from gfcompile.codegen.schedules.choices import Decisions
    from gfcompile.job import Analysis

COLUMNS = ("kernel", "times faster when it was tuned, measured", "template", "decisions")


def make_tuning(analysis: Analysis) -> Tuning:
    """Of the training program: how many kernels it has, those that were tuned, and what trials computed otherwise."""
    functions = analysis.programs["train"].program.functions
    tuned = {name: analysis.scheduler(function).tuned for name, function in functions.items()}
    return Tuning(
        kernels=len(functions),
        tuned=tuple(
            TunedKernel(
                kernel=name,
                template=record.template,
                decisions=in_words(record.decisions),
                ratio=record.ratio,
                machine=record.machine,
                date=record.date,
            )
            for name, record in tuned.items()
            if record is not None and record.ratio is not None
        ),
        algorithms=tuple(_follow_algorithms(analysis)),
        problems=tuple(analysis.scheduler.tuning.problems),
    )


def _follow_algorithms(analysis: Analysis) -> list[TunedAlgorithm]:
    """The convolutions that are computed otherwise than counting would have them."""
    machine, known = target_key(analysis.scheduler.target), analysis.scheduler.tuning
    sites = {site.convolution: site.edge for site in find_open(analysis.steps["train"])}
    found = {each: known.best(each.key, machine) for each, edge in sites.items() if edge != choose_edge(each)}
    return [
        TunedAlgorithm(convolution=each.key, algorithm=record.template, ratio=record.ratio)
        for each, record in found.items()
        if record is not None and record.ratio is not None
    ]


def tuning_lines(tuning: Tuning) -> list[str]:
    """For a person: how many, from when; lines of a database that could not be read."""
    tuned, lines = tuning.tuned, []
    if tuned:
        dates = sorted(row.date[:10] for row in tuned)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        machines = sorted({str(row.machine.get("cpu", "an unnamed CPU")) for row in tuned})
        where = ", ".join(machines)
        lines.append(f"tuned: {len(tuned)} of {tuning.kernels} kernels follow trials of {when} on {where}")
    else:
        lines.append(f"tuned: none of {tuning.kernels} kernels; gfcompile tune measures what is faster")
    for each in tuning.algorithms:
        lines.append(f"{each.convolution}: {each.algorithm}, measured to be {each.ratio:.2f}x faster")
    return [*lines, *tuning.problems]


def tuning_rows(tuning: Tuning) -> list[tuple[str, ...]]:
    """One row per tuned kernel: how much faster it is, and by which decisions."""
    return [(row.kernel, f"{row.ratio:.2f}", row.template, row.decisions) for row in tuning.tuned]


def in_words(decisions: Decisions) -> str:
    """{"tile": (4, 8), "unroll": 2} -> "tile 4x8, unroll 2"."""
    said = [f"{name} {by_x(each) if isinstance(each, tuple) else each}" for name, each in decisions.items()]
    return ", ".join(said) or "as proposed"
