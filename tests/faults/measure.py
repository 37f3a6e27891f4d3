"""Fault after fault: planted, tested, taken out; and whether the tests that noticed pass without it."""

from __future__ import annotations

import queue
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from tests.faults.fault import Fault
from tests.faults.tree import Tree

LIMIT = 900.0  # seconds for the tests of one fault
LONGEST = 160  # characters of a reason
CAUGHT, MISSED, BROKEN = "caught", "MISSED", "does not apply"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Verdict:
    """`by` is what noticed the fault, or why there is no verdict; `again` the tests that must pass without it.

    `why` is what the test said: a reader sees whether it noticed this fault, or a busy machine.
    """

    fault: Fault
    word: str
    by: str = ""
    why: str = ""
    seconds: float = 0.0
    again: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return {CAUGHT: f"caught by {self.by}", MISSED: MISSED, BROKEN: f"does not apply: {self.by}"}[self.word]


def measure(fault: Fault, tree: Tree, limit: float = LIMIT) -> Verdict:
    """One fault in one tree, which is whole again afterwards."""
    refusal = fault.refusal(tree.folder)
    if refusal is not None:
        return Verdict(fault, BROKEN, refusal)
    tests = fault.tests_in(tree.folder)
    with fault.planted(tree.folder):
        found = tree.run_tests(tests, limit)
    if found.passed:
        return Verdict(fault, MISSED, seconds=found.seconds)
    if found.is_fruitless:
        last = found.output.strip().splitlines()[-1:] or [""]
        return Verdict(fault, BROKEN, f"{found.end}: {last[0]}", seconds=found.seconds)
    for test, why in found.failed.items():
        return Verdict(fault, CAUGHT, test, why[:LONGEST], found.seconds, (test,))
    return Verdict(fault, CAUGHT, f"{found.end} in {', '.join(tests)}", "", found.seconds, tuple(tests))


def measure_all(faults: Sequence[Fault], trees: Sequence[Tree], say: Say, limit: float = LIMIT) -> list[Verdict]:
    """As many at a time as there are trees; then the tests that noticed one, in a whole tree."""
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    def work(fault: Fault) -> Verdict:
        tree = free.get()
        try:
            return measure(fault, tree, limit)
        finally:
            free.put(tree)

    start, found = time.monotonic(), []
    with ThreadPoolExecutor(len(trees)) as pool:
        for task in as_completed([pool.submit(work, fault) for fault in faults]):
            found.append(task.result())
            each = (time.monotonic() - start) / len(found)
            left = f"about {each * (len(faults) - len(found)) / 60:.0f} min left"
            say(f"{len(found):3} of {len(faults)}, {left}  {found[-1].fault.name}: {found[-1]}")
    say("the tests that noticed, once more without a fault ...")
    verdicts = confirm(found, trees[0], limit * 2)
    return sorted(verdicts, key=lambda verdict: faults.index(verdict.fault))


def confirm(verdicts: Sequence[Verdict], tree: Tree, limit: float) -> list[Verdict]:
    """A test that fails on the whole tree as well has noticed nothing."""
    tests = list(dict.fromkeys(test for verdict in verdicts for test in verdict.again))
    bad = set(_fail_anyway(tree, tests, limit))
    return [
        replace(verdict, word=BROKEN, by=f"{test} fails without it too")
        if (test := next((test for test in verdict.again if test in bad), None))
        else verdict
        for verdict in verdicts
    ]


def _fail_anyway(tree: Tree, tests: Sequence[str], limit: float) -> Iterator[str]:
    """All in one run; where that has no end or does not say which, one by one."""
    if not tests:
        return
    found = tree.run_tests(tests, limit, stop_early=False)
    if found.passed:
        return
    if found.code == 1 and set(found.failed) <= set(tests):
        yield from found.failed
        return
    for test in tests:
        if not tree.run_tests([test], limit).passed:
            yield test


def cpu_seconds() -> float:
    """Of all processes started here and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
