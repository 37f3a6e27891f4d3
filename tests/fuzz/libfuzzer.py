"""Runs of libFuzzer: it is the engine of both kinds of harness, so both are told and understood here."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fuzz.harness import CORPUS, HERE, Job, Outcome

HANG_SECONDS = 10
MOST_BYTES = 16384  # of an input: larger ones are slower and find no more in formats like these
SANITIZERS = {
    # Freed blocks are kept for a while, so that their use is seen; the usual 256 MB would drown the limit on memory.
    "ASAN_OPTIONS": "quarantine_size_mb=16:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass(frozen=True)
class Engine:
    """A program that takes libFuzzer's options; `command` builds it where it is not there yet."""

    command: Callable[[], Sequence[str]]
    corpora: tuple[str, ...]  # folders of the corpus, the first's name is its dictionary's too
    rss_megabytes: int
    hang_seconds: int = HANG_SECONDS
    mutes_stdout: bool = True  # child.py prints tracebacks there

    def run(self, job: Job) -> Outcome:
        """An input that ends the program is kept in `job.crashes`."""
        job.crashes.mkdir(parents=True, exist_ok=True)
        found = job.scratch / "found"
        found.mkdir()
        options: dict[str, object] = {
            "seed": job.seed,
            "timeout": self.hang_seconds,
            "rss_limit_mb": self.rss_megabytes,
            "artifact_prefix": f"{job.crashes}/",
            "print_final_stats": 1,
            "close_fd_mask": int(self.mutes_stdout),
        }
        if job.replay is not None:
            inputs = [job.replay.absolute()]
        else:
            options |= {"max_total_time": job.seconds, "max_len": MOST_BYTES}
            words = HERE / "dictionaries" / f"{self.corpora[0]}.dict"
            options |= {"dict": words} if words.exists() else {}
            inputs = [found, *(CORPUS / name for name in self.corpora)]  # what is new goes to the first
        arguments = [*self.command(), *(f"-{option}={value}" for option, value in options.items()), *map(str, inputs)]
        environment = {**os.environ, **SANITIZERS}
        started = time.monotonic()
        with job.log.open("wb") as log:
            done = subprocess.run(arguments, stdout=log, stderr=log, cwd=job.scratch, env=environment, check=False)
        seconds = time.monotonic() - started
        said = job.log.read_text(errors="replace")
        outcome = Outcome(executions(said), seconds, _new_coverage(said))
        if done.returncode == 0:
            return outcome
        kept = re.findall(r"Test unit written to (.*)", said) if job.replay is None else [job.replay]
        if not kept:
            return replace(outcome, failure=f"ended with code {done.returncode} and kept no input")
        return replace(outcome, findings=tuple(map(Path, kept)))


def executions(said: str) -> int:
    """How many inputs were run so far: its lines begin with that number, and a crash prints it as a statistic."""
    found = re.findall(r"^(?:#|stat::number_of_executed_units: +)(\d+)", said, re.MULTILINE)
    return int(found[-1]) if found else 0


def summary(said: str) -> str:
    """What a traceback, a property of ours or a sanitizer says in a line."""
    for pattern in (r"^Traceback .*\n(?:[ +].*\n|\n)*(\S.*)", r"^(broken property: .*)", r"^SUMMARY: (.*)"):
        if told := re.findall(pattern, said, re.MULTILINE):
            return str(told[-1])
    return "it ended without a word"


def _new_coverage(said: str) -> int:
    """What was reached beyond the seeds."""
    lines = re.findall(r"^#\d+\t(\w+) +cov: (\d+)", said, re.MULTILINE)
    seeds = [int(count) for event, count in lines if event == "INITED"]
    return int(lines[-1][1]) - seeds[0] if seeds else 0
