"""What a tuning session says: before, during, after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gfcompile.codegen.tuned.database import user_path
from gfcompile.codegen.tuned.record import EMULATED
from gfcompile.report.summary import text_table
from gfcompile.report.tuning import in_words
from gfcompile.tuning.procedure import Procedure
from gfcompile.tuning.ranking import Ranking
from gfcompile.tuning.status import Budget, Status, Tuned

_COLUMNS = ("kernel", "of the time", "trials", "failed", "times faster", "decisions")
_SHOWN = 16
_MINUTE = 60


def head_text(procedure: Procedure, path: Path, budget: Budget) -> str:
    """What is about to be tuned, for how long, and where trials are kept."""
    status, target, kind = procedure.status, procedure.target, procedure.runner.kind
    known = sum(kernel.known for kernel in status.kernels)
    shapes = len(procedure.algorithms.status.kernels)
    first = f", first the algorithms of convolutions of {shapes} shape{'s' * (shapes > 1)}" if shapes else ""
    limits = [f"{budget.trials} trials"] if budget.trials is not None else []
    limits += [f"{budget.seconds / _MINUTE:g} minutes"] if budget.seconds is not None else []
    lines = [
        f"tuning {len(status.kernels)} kernels for {target.name}, {' or '.join(limits)}{first}; trials are {kind}",
        f"trials are kept in {path}" + (f", {known} of these kernels are there already" if known else ""),
    ]
    if kind == EMULATED:
        lines.append("through an emulator: right or wrong shows, speed does not; the compiler never follows these")
    return "\n".join(lines)


def progress_text(status: Status) -> str:
    """One line: the trial, what was gained, and the kernel at hand."""
    kernel = status.kernel
    if kernel is None:
        return f"tuning: {status.trials} trials"
    if not kernel.seconds:
        return f"measuring untuned kernels {status.kernels.index(kernel) + 1}/{len(status.kernels)} {kernel.task.name}"
    best = f"{kernel.best.ratio:.2f}x" if kernel.best is not None else "none better"
    left = status.seconds_left
    end = f", {left / _MINUTE:.0f} min left" if left is not None else ""
    return f"tuning: trial {status.trials}, kernels {status.ratio:.3f}x faster{end}; now {kernel.task.name} ({best})"


def summary_text(procedure: Procedure, path: Path) -> str:
    """What tuning found, kernel by kernel."""
    status, algorithms, kind = procedure.status, procedure.algorithms.status, procedure.runner.kind
    kernels = sorted(status.kernels, key=lambda kernel: -kernel.seconds)
    total = status.untuned_seconds
    measured = [kernel for kernel in kernels if kernel.seconds]
    rows = [_row(kernel, total, kind) for kernel in measured[:_SHOWN]]
    rest = len(measured) - len(rows)
    more = [f"... and {rest} that take less"] if rest > 0 else []
    more += [f"{kernel.task.name} stays as it is: {kernel.problem}" for kernel in kernels if kernel.problem is not None]
    more += [_algorithm_line(each, kind) for each in algorithms.kernels]
    back = "faster by itself, not surely in the step"
    more += [f"{name}: {back} ({times:.2f}x); taken back" for name, times in procedure.rejected]
    better = sum(kernel.best is not None for kernel in kernels)
    spent = sum(each.seconds for each in (status, algorithms) if each.trials)
    trials = f"{status.trials + algorithms.trials} trials in {spent / _MINUTE:.1f} minutes"
    if kind == EMULATED:
        found = f"{better} of {len(kernels)} kernels looked faster in an emulator, which says nothing of a board"
    else:
        found = f"{better} of {len(kernels)} kernels are faster; all of them together {status.ratio:.3f}x, {kind}"
    if procedure.interrupted:
        end = "stopped; the same command goes on from here"
    elif kind == EMULATED:
        end = "the compiler does not follow it"
    else:
        end = "compiling for this target follows it" if path == user_path() else "compiling with this --db follows it"
    return "\n".join([text_table(_COLUMNS, rows), *more, "", f"{trials}: {found}", f"{path}: {end}"])


def ranking_progress(ranking: Ranking) -> str:
    """One line: how many candidates, and the kernel at hand."""
    kernel = ranking.kernel
    return f"ranking candidates {ranking.trials} {kernel.task.name if kernel is not None else ''}"


def ranking_text(ranking: Ranking, path: Path) -> str:
    """Scores only: the model's times are no times."""
    kernels = sorted(ranking.kernels, key=lambda kernel: -kernel.seconds)[:_SHOWN]
    rows = [
        (
            kernel.task.name[:50],
            str(kernel.candidates),
            str(kernel.failures),
            f"{kernel.score:.2f}",
            f"{kernel.best.template}: {in_words(kernel.best.decisions)}" if kernel.best is not None else "",
        )
        for kernel in kernels
    ]
    table = text_table(("kernel", "candidates", "refused", "score", "best by the model"), rows)
    return f"{table}\n\n{ranking.note}\n{path}: kept as ranked; the compiler does not follow these"


def _algorithm_line(convolution: Tuned, kind: str) -> str:
    counted = convolution.usual.candidate.template
    if convolution.template == counted or kind == EMULATED:
        return f"{convolution.task.name}: {counted}, as counted"
    ratio = convolution.best.ratio if convolution.best is not None else None
    return f"{convolution.task.name}: {convolution.template}, {ratio:.2f}x faster than {counted}"


def _row(kernel: Tuned, total: float, kind: str) -> Sequence[str]:
    best = kernel.best if kind != EMULATED else None  # no board's
    return (
        kernel.task.name[:50],
        f"{kernel.seconds / total:.1%}",
        str(kernel.trials),
        str(kernel.failures),
        f"{best.ratio:.2f} +- {best.spread:.2f}" if best is not None else "",
        f"{best.template}: {in_words(best.decisions)}" if best is not None else "",
    )
