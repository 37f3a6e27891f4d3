"""Seed after seed in child processes: a crash, or a network without an end, is one network's failure."""

from __future__ import annotations

import math
import multiprocessing
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

PER_CHILD = 25  # networks, then a new child: what one keeps in memory goes with it
LONGEST = 600  # seconds for one network: whatever takes longer does not end
Work = Callable[[list[int], Connection], None]  # in a child: sends a result for each seed


@dataclass(frozen=True)
class Error:
    """How far a value is from the peer's, and how far it may be."""

    where: str
    size: float
    allowed: float

    @property
    def share(self) -> float:
        return self.size / self.allowed if math.isfinite(self.size) else float("inf")

    def __str__(self) -> str:
        return f"{self.where}: relative error {self.size:.1e}, {self.allowed:.1e} allowed"


@dataclass
class Result:
    """Of one network: its errors, or why there are none. `rounded` are those that another batch did not show."""

    seed: int
    errors: list[Error] = field(default_factory=list)
    rounded: list[Error] = field(default_factory=list)
    refusal: str = ""
    failure: str = ""
    seconds: float = 0.0
    operators: set[str] = field(default_factory=set)

    @property
    def worst(self) -> Error:
        return max(self.errors, key=lambda error: error.share, default=Error("nothing", 0.0, 1.0))

    @property
    def failed(self) -> bool:
        return bool(self.failure) or self.worst.share > 1


def run_beside(seeds: list[int], work: Work, jobs: int) -> Iterator[Result]:
    """A result for each seed as it comes, of several children at a time."""
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def follow(own: list[int]) -> None:
        for result in run(own, work):
            results.put(result)

    with ThreadPoolExecutor(jobs) as pool:
        for job in range(jobs):
            pool.submit(follow, seeds[job::jobs])
        for _ in seeds:
            yield results.get()


def run(seeds: list[int], work: Work, longest: float = LONGEST) -> Iterator[Result]:
    """A result for each seed, in order. A child that ends, or does not, has failed at the seed it was at."""
    context = multiprocessing.get_context("spawn")
    while seeds:
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=work, args=(seeds[:PER_CHILD], sender))
        child.start()
        sender.close()
        for _ in seeds[:PER_CHILD]:
            try:
                if not receiver.poll(longest):
                    child.kill()
                    yield Result(seeds[0], failure=f"no end after {longest:.0f} seconds", seconds=longest)
                    seeds = seeds[1:]
                    break
                result = receiver.recv()
            except EOFError:
                child.join()
                yield Result(seeds[0], failure=f"the process ended with code {child.exitcode}")
                seeds = seeds[1:]
                break
            yield result
            seeds = seeds[1:]
        child.join()
