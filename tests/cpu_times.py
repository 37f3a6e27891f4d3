"""The processor time of every test: wall time says little on a machine that does other work as well.

    python -m pytest -p tests.cpu_times --cpu-times times.jsonl -n 2 ...
    python -m tests.cpu_times times.jsonl

A line per test is written as soon as it ends. It counts this process and the children that were waited for.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PHASES = ("setup", "call", "teardown")
SHOWN = 60


class CpuTimes:
    """Writes what each test took. Workers append to one file: a line is one write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self) -> None:
        self.seconds = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        yield from self._timed("setup")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        yield from self._timed("call")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield from self._timed("teardown")
        self._write(item.nodeid, self.seconds)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._write(f"collection/{os.environ.get('PYTEST_XDIST_WORKER', 'main')}", {"setup": _spent()})

    def _timed(self, phase: str) -> Iterator[None]:
        before = _spent()
        try:
            return (yield)
        finally:
            self.seconds[phase] = _spent() - before

    def _write(self, name: str, seconds: dict[str, float]) -> None:
        line = json.dumps({"test": name} | {phase: round(s, 3) for phase, s in seconds.items()}) + "\n"
        with open(self.path, "ab", buffering=0) as out:
            out.write(line.encode())


def _spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-times", metavar="FILE", help="append the processor time of every test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-times"):
        config.pluginmanager.register(CpuTimes(str(Path(config.invocation_params.dir, path))))


def summarise(path: Path) -> str:
    """The dearest tests, then files, then directories, in seconds; in the end all of them."""
    seconds = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        seconds[entry["test"]] = sum(entry.get(phase, 0.0) for phase in PHASES)
    parts = [
        _table("tests", dict(sorted(seconds.items(), key=lambda pair: -pair[1])[:SHOWN])),
        _table("files", _add_up(seconds, lambda test: test.split("::")[0])),
        _table("directories", _add_up(seconds, lambda test: str(Path(test.split("::")[0]).parent))),
        f"{len(seconds)} tests, {sum(seconds.values()) / 60:.1f} CPU minutes",
    ]
    return "\n\n".join(parts)


def _add_up(seconds: dict[str, float], name: Callable[[str], str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for test, spent in seconds.items():
        sums[name(test)] += spent
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))


def _table(title: str, rows: dict[str, float]) -> str:
    return "\n".join([title, *(f"{spent:9.1f}  {name}" for name, spent in rows.items())])


if __name__ == "__main__":
    print(summarise(Path(sys.argv[1])))
