"""All benchmarks, one after the other, in about half an hour on two quiet cores: `make bench`.

    python -m benchmarks.suite [--only SECTION ...] [--resume] [--full] [--quick] [--out docs]

Writes OUT/benchmarks.json after every row, then OUT/benchmarks.md with its plots (`benchmarks.page` alone does the
latter). A section that is not run stays as it was recorded, with its own date and machine; --resume also keeps the
finished rows of those that are. --full leaves nothing out and takes a quarter of an hour more. --quick tries
everything on tiny settings, into build/ unless --out is given: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.record import Record
from benchmarks.sections import SECTIONS, Job, Options


class Clock:
    """Elapsed time, and what is left: expected seconds, corrected by how long the finished ones took."""

    def __init__(self, expected: float) -> None:
        self._start = time.perf_counter()
        self._left = expected
        self._done = 0.0

    def finish(self, expected: float) -> None:
        self._left -= expected
        self._done += expected

    def __str__(self) -> str:
        elapsed = time.perf_counter() - self._start
        pace = (elapsed + 60) / (self._done + 60)  # the first rows alone say little
        return f"{elapsed / 60:.1f} min elapsed, about {pace * self._left / 60:.0f} min left"


def main() -> int:
    from benchmarks import page  # not above: every peer's process imports this module, and needs no matplotlib

    arguments = _arguments()
    record = Record(arguments.out / page.JSON)
    with tempfile.TemporaryDirectory() as scratch:
        run(record, arguments.only, Options(Path(scratch), arguments.quick, arguments.full), arguments.resume)
    page.render(arguments.out)
    print(f"{arguments.out / page.MARKDOWN} is written")
    failed = [
        key for section in record.sections.values() for key, row in section["rows"].items() if "failed_row" in row
    ]
    return 1 if failed else 0


def run(record: Record, names: Sequence[str], options: Options, resume: bool) -> None:
    """Run these sections and record every row."""
    todo: dict[str, list[Job]] = {}
    for name in names:
        jobs = SECTIONS[name].jobs(options)
        about = {"machine": describe_machine(), "quick": options.quick}
        missing = record.begin(name, [job.key for job in jobs], about, resume)
        todo[name] = [job for job in jobs if job.key in missing]
    expected = {name: _expected(name, jobs) for name, jobs in todo.items()}
    for name, seconds in expected.items():
        print(f"{name:8} {len(todo[name]):3} rows, about {seconds / 60:4.1f} min")
    clock = Clock(sum(expected.values()))
    print(
        f"{'in all':8} {sum(map(len, todo.values())):3} rows, about {sum(expected.values()) / 60:4.1f} min", flush=True
    )
    for name, jobs in todo.items():
        if jobs:
            SECTIONS[name].before(jobs, options)
            clock.finish(SECTIONS[name].before_seconds * len(jobs))
        for at, job in enumerate(jobs, 1):
            print(f"[{name} {at}/{len(jobs)}] {job.key}; {clock}", flush=True)
            record.add(name, job.key, _timed(job))
            clock.finish(job.seconds)


def _timed(job: Job) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        row = job.run()
    except Exception as error:  # noqa: BLE001 - the other rows are still wanted; the page says what failed
        row = {"failed_row": f"{type(error).__name__}: {str(error)[:300]}"}
        print(f"    failed: {row['failed_row']}", flush=True)
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _expected(name: str, jobs: Sequence[Job]) -> float:
    return sum(job.seconds + SECTIONS[name].before_seconds for job in jobs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="these sections alone")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are recorded, run the missing ones")
    parser.add_argument("--full", action="store_true", help="every model at every batch size against every peer")
    parser.add_argument("--quick", action="store_true", help="tiny settings, to see that everything runs")
    parser.add_argument("--out", type=Path, help="folder of the page; default: docs, or build/benchmarks with --quick")
    arguments = parser.parse_args()
    arguments.out = arguments.out or Path("build/benchmarks" if arguments.quick else "docs")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
