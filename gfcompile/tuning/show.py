"""A database in words: what was tried for each machine, and what it gained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.keys import versions
from gfcompile.codegen.tuned.record import EMULATED, KINDS, MEASURED, Record
from gfcompile.report.summary import text_table
from gfcompile.report.tuning import in_words

COLUMNS = ("kernel", "template", "trials", "failures", "times as fast", "seconds per run", "kind", "decisions")
NOTE = (
    "emulated: it gave the right result in an emulator, whose speed is not the machine's: no time is shown, and the"
    " compiler does not use it"
)


def show_text(database: Database) -> str:
    """One table per target, of the trials of these versions; then totals, and the lines that could not be read."""
    current = [record for record in database.records if record.versions == versions()]
    parts = [_table(database, current, target) for target in sorted({record.target for record in current})]
    if any(record.kind == EMULATED for record in current):
        parts.append(NOTE)
    parts.append(_totals(database, current))
    if database.problems:
        parts.append("\n".join(["problems:", *(f"  {problem}" for problem in database.problems)]))
    return "\n\n".join(parts)


def _table(database: Database, records: list[Record], target: str) -> str:
    kernels = {record.kernel: record.name for record in records if record.target == target}
    ordered = sorted(kernels, key=lambda kernel: (kernels[kernel], kernel))
    return f"{target}\n{text_table(COLUMNS, [_row(database, kernel, target) for kernel in ordered])}"


def _row(database: Database, kernel: str, target: str) -> list[str]:
    tried = database.tried(kernel, target)
    failures = sum(record.failure is not None for record in tried)
    best = database.best(kernel, target) or database.best(kernel, target, allow_emulated=True)
    counts = [str(len(tried)), str(failures)]
    if best is None:
        return [tried[-1].name, tried[-1].template, *counts, "-", "-", _kinds(tried), "none was faster"]
    seconds = _in_seconds(best.seconds) if best.kind == MEASURED and best.seconds is not None else "-"
    ratio = f"{best.ratio:.2f} ± {best.spread:.2f}"
    return [best.name, best.template, *counts, ratio, seconds, best.kind, in_words(best.decisions)]


def _totals(database: Database, records: list[Record]) -> str:
    if not database.records:
        return "no trials"
    keys = {(record.kernel, record.target) for record in records}
    faster = sum(database.best(*key) is not None for key in keys)
    failed = sum(record.failure is not None for record in records)
    lines = [
        f"trials: {len(records)} ({_kinds(records, counted=True)}), failed: {failed}",
        f"kernels: {len(keys)}, measured to be faster than untuned: {faster}",
    ]
    others = Counter(record.versions for record in database.records if record.versions != versions())
    lines += [f"not used: {count} of {version}; this is {versions()}" for version, count in sorted(others.items())]
    return "\n".join(lines)


def _kinds(records: Iterable[Record], counted: bool = False) -> str:
    counts = Counter(record.kind for record in records)
    said = [f"{kind} {counts[kind]}" if counted else kind for kind in KINDS if counts[kind]]
    return ", ".join(said) or "none"


def _in_seconds(seconds: float) -> str:
    """0.00123 -> "1.23 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds * 1e6:.2f} µs"
