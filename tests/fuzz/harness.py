"""`Harness`: one thing that is fuzzed; and what a run of it is told and tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"  # a folder for each harness, written by seeds.py; found crashes go there once they are mended
STATE = HERE.parents[1] / ".fuzz"  # programs, crashes and logs


@dataclass(frozen=True)
class Job:
    """One run: of the corpus and what is made of it for some seconds, or of one input."""

    seconds: int
    seed: int
    log: Path  # what the harness says; read for progress while it runs
    scratch: Path  # a folder for its files, removed afterwards
    crashes: Path  # a folder for inputs that are findings
    replay: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """`new_coverage` counts the places in the code that no seed reached; `findings` are inputs that were kept.

    `failure` is not empty where the harness itself did not work.
    """

    executions: int
    seconds: float
    new_coverage: int
    findings: tuple[Path, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Harness:
    """`missing` says in a sentence what must be installed first, None if nothing; `prepare` builds what `run` needs."""

    name: str
    kind: str  # C or Python
    run: Callable[[Job], Outcome]
    missing: Callable[[], str | None]
    prepare: Callable[[], object]
