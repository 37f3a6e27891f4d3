"""A compiled training step, written by gfcompile. `load()` gives a `Step`; numpy is all it needs."""

from __future__ import annotations

from pathlib import Path

from ._runtime.errors import StepError
from ._runtime.step import Step

__all__ = ["Step", "StepError", "load"]


def load(threads: int | None = None) -> Step:
    """Load the step of this folder with its compiled-in weights; `threads` None takes all online cores."""
    return Step.load(Path(__file__).parent, threads)
