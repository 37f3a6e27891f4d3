"""python -m tests.faults [NAME ...]: how many deliberate faults the tests notice.

Each is put into a scratch copy of the project, and the tests that should notice it run there. A fault that they miss is
a hole in the suite: close it with a test, or name the test that does notice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.faults.lists import ALL
from tests.faults.measure import BROKEN, CAUGHT, LIMIT, MISSED, Verdict, cpu_seconds, measure_all
from tests.faults.tree import Tree, copy_project, name_commit


def main(words: Sequence[str] | None = None) -> int:
    options = _parse(words)
    known = {fault.name: fault for fault in ALL}
    unknown = [name for name in options.names if name not in known]
    if unknown:
        print(f"faults: '{unknown[0]}' is not in the list; see --list", file=sys.stderr)
        return 2
    chosen = [known[name] for name in options.names or known]
    if options.list:
        for fault in chosen:
            print(f"{fault.name}\n    {fault.file}: {fault.wrong}\n    {' '.join(fault.tests)}")
        return 0
    commit = name_commit(options.against)
    print(f"faults: {len(chosen)} in {commit}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gf-faults-") as scratch, contextlib.ExitStack() as opened:
        trees = [opened.enter_context(Tree(Path(scratch) / f"tree{number}")) for number in range(options.jobs)]
        for tree in trees:
            copy_project(tree.folder, options.against)
        verdicts = measure_all(chosen, trees, lambda line: print(line, flush=True), options.limit)
    _print_table(verdicts)
    if options.json is not None:
        options.json.write_text(json.dumps(_as_data(commit, verdicts), indent=1) + "\n")
    return 0 if all(verdict.word == CAUGHT for verdict in verdicts) else 1


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    parser.add_argument("--list", action="store_true", help="say what each does and which tests should notice")
    parser.add_argument("--against", metavar="COMMIT", help="its code and tests; default: the working tree")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time; default: 1")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for one fault's tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there too")
    return parser.parse_args(words)


def _print_table(verdicts: Sequence[Verdict]) -> None:
    wide = max((len(verdict.fault.name) for verdict in verdicts), default=0) + 2
    print()
    for verdict in verdicts:
        print(f"{verdict.fault.name:{wide}}{verdict.seconds:6.0f} s  {verdict}")
        if verdict.why:
            print(f"{'':{wide}}          {verdict.why}")
    counts = Counter(verdict.word for verdict in verdicts)
    words = ", ".join(f"{counts[word]} {word.lower()}" for word in (CAUGHT, MISSED, BROKEN))
    print(f"\nof {len(verdicts)}: {words}; {cpu_seconds() / 60:.1f} CPU minutes")


def _as_data(commit: str, verdicts: Sequence[Verdict]) -> dict[str, object]:
    counts = Counter(verdict.word for verdict in verdicts)
    rows = [
        {"name": each.fault.name, "verdict": each.word, "by": each.by, "why": each.why, "seconds": round(each.seconds)}
        for each in verdicts
    ]
    return {"commit": commit, "counts": dict(counts), "cpu_seconds": round(cpu_seconds()), "faults": rows}


if __name__ == "__main__":
    sys.exit(main())
