"""Compiling without the two programs that only the report compares with: the same library in less time.

For tests that ask what a step computes. Those of the report compile everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import gfcompile
from gfcompile import compiler
from gfcompile.job import COMPARISONS, Analysis, Lowered
from gfcompile.progress import Progress
from gfcompile.targets import Target


def lower_lean(*arguments: Any, **options: Any) -> Lowered:
    return compiler.lower_job(*arguments, **options, comparisons=False)


def place_lean(lowered: Lowered, target: Target, *arguments: Any, **options: Any) -> Analysis:
    """With the step itself in the place of what it would be compared with."""
    analysis = compiler.place(lowered, target, *arguments, **options)
    return replace(analysis, comparisons=dict.fromkeys(COMPARISONS, analysis.programs["train"]))


@contextmanager
def lean() -> Iterator[None]:
    """What is compiled meanwhile is compiled so."""

    def analyse(job: Any, observe: Any, progress: Progress, target: Target, tuning: Any) -> Analysis:
        algorithms = compiler.choose_by(tuning, target)
        return place_lean(lower_lean(job, target.kind, observe, progress, algorithms), target, progress, tuning)

    with mock.patch("gfcompile.api.analyse", analyse):
        yield


def lean_compile(*arguments: Any, **options: Any) -> gfcompile.CompiledStep:
    with lean():
        return gfcompile.compile(*arguments, **options)
