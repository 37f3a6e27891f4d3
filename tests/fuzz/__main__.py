"""python -m tests.fuzz [NAME ...]: run the harnesses, and say what they found.

Findings stay below .fuzz/crashes. Once mended, an input goes to tests/fuzz/corpus as `fixed-...`: the tests run those.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import c_programs, python_programs
from tests.fuzz.harness import STATE, Harness, Job, Outcome
from tests.fuzz.libfuzzer import executions, summary

MEMORY = Path("/dev/shm")  # small files are written all the time; no disk need see them
BEAT_SECONDS = 10


def all_harnesses() -> list[Harness]:
    return [*c_programs.harnesses(), *python_programs.harnesses()]


@dataclass(frozen=True)
class Row:
    harness: Harness
    outcome: Outcome
    log: Path


def main(words: Sequence[str] | None = None) -> int:
    options = _parse(words)
    known = {harness.name: harness for harness in all_harnesses()}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"fuzz: '{unknown[0]}' is no harness; use {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = [known[name] for name in options.names or known]
    missing = {harness.name: why for harness in chosen if (why := harness.missing()) is not None}
    for why in sorted(set(missing.values())):
        print(f"fuzz: {why}", flush=True)
    ready = [harness for harness in chosen if harness.name not in missing]
    if options.replay is not None:
        return _replay(ready, options.replay) if len(chosen) == 1 else _ask_for_one()
    rows = _run_all(ready, options) if ready else []
    _print_table(rows)
    return 1 if _report(rows) or (missing and os.environ.get("GF_REQUIRE_ALL") == "1") else 0


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all harnesses")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=5, help="for all of them together; default: 5")
    length.add_argument("--seconds-each", type=int)
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input, and show what it does")
    return parser.parse_args(words)


def _run_all(harnesses: Sequence[Harness], options: argparse.Namespace) -> list[Row]:
    each = options.seconds_each or max(1, int(options.minutes * 60 * options.jobs / len(harnesses)))
    seed = options.seed if options.seed is not None else random.randrange(1, 2**31)
    print(f"fuzz: {len(harnesses)} harnesses, {each} s each, {options.jobs} at a time, seed {seed}", flush=True)
    for harness in harnesses:
        harness.prepare()
    logs = {harness.name: STATE / "logs" / f"{harness.name}.log" for harness in harnesses}
    for log in logs.values():
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
    end = time.monotonic() + each * -(-len(harnesses) // options.jobs)
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        tasks = {pool.submit(_run, harness, each, seed, logs[harness.name]): harness for harness in harnesses}
        pending: set[Future[Outcome]] = set(tasks)
        while pending:
            done, pending = wait(pending, timeout=BEAT_SECONDS)
            left = max(0, round(end - time.monotonic()))
            print(f"fuzz: {len(tasks) - len(pending)} of {len(tasks)} done, {left} s left", flush=True)
            for log in (logs[tasks[task].name] for task in pending):
                if log.exists():
                    print(f"      {log.stem}: {executions(log.read_text(errors='replace')):,} runs", flush=True)
            rows += [Row(tasks[task], task.result(), logs[tasks[task].name]) for task in done]
    return sorted(rows, key=lambda row: harnesses.index(row.harness))


def _run(harness: Harness, seconds: int, seed: int, log: Path, replay: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="gf-fuzz-", dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        return harness.run(Job(seconds, seed, log, Path(scratch), STATE / "crashes" / harness.name, replay))


def _replay(ready: Sequence[Harness], path: Path) -> int:
    if not ready:
        return 1
    ready[0].prepare()
    log = STATE / "logs" / "replay.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    outcome = _run(ready[0], 0, 1, log, path)
    print(log.read_text(errors="replace"))
    print(f"fuzz: {ready[0].name} {'fails on' if outcome.findings else 'takes'} {path}")
    return 1 if outcome.findings else 0


def _ask_for_one() -> int:
    print("fuzz: --replay: name the one harness that reads the file", file=sys.stderr)
    return 2


def _print_table(rows: Sequence[Row]) -> None:
    line = "{:16}{:>9}{:>14}{:>12}{:>14}{:>10}"
    print(line.format("harness", "kind", "executions", "per second", "new coverage", "crashes"))
    for row in rows:
        done = row.outcome
        rate = done.executions / done.seconds
        figures = (f"{done.executions:,}", f"{rate:,.0f}", done.new_coverage, len(done.findings))
        print(line.format(row.harness.name, row.harness.kind, *figures))


def _report(rows: Sequence[Row]) -> bool:
    """Print how to see every finding again; whether there was one, or a harness that did not work."""
    for row in rows:
        if row.outcome.failure:
            print(f"\n{row.harness.name}: {row.outcome.failure}; see {row.log}")
        for path in row.outcome.findings:
            print(f"\n{row.harness.name}: {summary(row.log.read_text(errors='replace'))}")
            print(f"  input:  {path}\n  log:    {row.log}")
            print(f"  replay: {Path(sys.executable).name} -m tests.fuzz {row.harness.name} --replay {path}")
    return any(row.outcome.findings or row.outcome.failure for row in rows)


if __name__ == "__main__":
    sys.exit(main())
