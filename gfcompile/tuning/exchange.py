"""Databases to other databases: several into one, and the little of one that is worth shipping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from gfcompile.codegen.tuned.database import Database, locked, writing
from gfcompile.codegen.tuned.keys import versions
from gfcompile.codegen.tuned.record import MEASURED, Record, write_record
from gfcompile.errors import UserError
from gfcompile.runtime.tensorfile import write_atomically


class Merged(NamedTuple):
    """What became of the lines of several databases."""

    records: int  # written
    duplicates: int  # left out
    problems: list[str]  # lines that were no records, left out too


def merge(paths: Sequence[Path], out: Path) -> Merged:
    """All records of the files, equal ones once, in the files' order. `out` may be one of them, or is new."""
    is_input = out.exists() and any(path.exists() and path.samefile(out) for path in paths)
    if out.exists() and not is_input:
        raise UserError(f"{out}: exists and is not among the files to merge; add it to them, or give another file")
    # who adds to `out` meanwhile waits, and then finds the new file
    with writing(out), locked(out) if is_input else nullcontext():
        databases = [Database.open(path, must_exist=True) for path in paths]
        lines = [write_record(record) for database in databases for record in database.records]
        distinct = dict.fromkeys(lines)
        _write(out, distinct)
    problems = [problem for database in databases for problem in database.problems]
    return Merged(len(distinct), len(lines) - len(distinct), problems)


def export(database: Database, out: Path, only_best: bool = True, target: str | None = None) -> int:
    """How many records were written: measured ones of these versions; the best of each kernel and target, or all.

    Sorted, so that the next export differs where trials do. Replaces an earlier export of best records alone.
    """
    earlier = Database.open(out)
    if (earlier.records or earlier.problems) and not _is_export(earlier):
        raise UserError(f"{out}: exists and is no export of best records; give another file, or remove it")
    kept = [each for each in database.records if _is_worth_it(each) and target in (None, each.target)]
    if only_best:
        keys = {(each.kernel, each.target) for each in kept}
        found = [database.best(*key) for key in keys]
        kept = [each for each in found if each is not None]
    kept.sort(key=lambda each: (each.target, each.name, each.kernel, each.date, write_record(each)))
    with writing(out):
        _write(out, map(write_record, kept))
    return len(kept)


def _is_worth_it(record: Record) -> bool:
    return record.kind == MEASURED and record.versions == versions()


def _is_export(database: Database) -> bool:
    keys = {(each.kernel, each.target) for each in database.records}
    measured = all(each.kind == MEASURED and each.failure is None for each in database.records)
    return measured and len(keys) == len(database.records) and not database.problems


def _write(out: Path, lines: Iterable[bytes]) -> None:
    """Whole or not at all. Raises OSError."""
    write_atomically(out.resolve(), lines)  # a link stays one
