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
from gfcompile import stages
from gfcompile.job import Analysis, Job, Lowered, Scheduled
from gfcompile.targets import Target, find_target


def place_lean(lowered: Lowered, target: Target, *arguments: Any, **options: Any) -> Analysis:
    return _compared_with_itself(stages.place(lowered, target, *arguments, **options))


def analyse_lean(job: Job, target: Target | None = None) -> Analysis:
    target = target or find_target("native")
    return place_lean(stages.lower_job(job, target.kind), target)


@contextmanager
def lean() -> Iterator[None]:
    """What is compiled meanwhile is compiled so."""

    def give_places(scheduled: Scheduled, _: Any) -> Analysis:
        return _compared_with_itself(stages.give_places(scheduled))

    with mock.patch("gfcompile.compiler.give_places", give_places):
        yield


def lean_compile(*arguments: Any, **options: Any) -> gfcompile.CompiledStep:
    with lean():
        return gfcompile.compile(*arguments, **options)


def _compared_with_itself(analysis: Analysis) -> Analysis:
    """With the step itself in the place of what it would be compared with."""
    return replace(analysis, compare=lambda: dict.fromkeys(("exact", "published"), analysis.programs["train"]))
