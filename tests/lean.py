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
from gfcompile.job import COMPARISONS, Analysis, Lowered, Rewritten, Scheduled
from gfcompile.targets import Target


def lower_lean(*arguments: Any, **options: Any) -> Lowered:
    return stages.lower_job(*arguments, **options, comparisons=False)


def place_lean(lowered: Lowered, target: Target, *arguments: Any, **options: Any) -> Analysis:
    return _compared_with_itself(stages.place(lowered, target, *arguments, **options))


@contextmanager
def lean() -> Iterator[None]:
    """What is compiled meanwhile is compiled so."""

    def rewrite(*arguments: Any) -> Rewritten:
        return stages.rewrite(*arguments, comparisons=False)

    def give_places(scheduled: Scheduled) -> Analysis:
        return _compared_with_itself(stages.give_places(scheduled))

    with (
        mock.patch("gfcompile.compiler.rewrite", rewrite),
        mock.patch("gfcompile.compiler.give_places", give_places),
    ):
        yield


def lean_compile(*arguments: Any, **options: Any) -> gfcompile.CompiledStep:
    with lean():
        return gfcompile.compile(*arguments, **options)


def _compared_with_itself(analysis: Analysis) -> Analysis:
    """With the step itself in the place of what it would be compared with."""
    return replace(analysis, comparisons=dict.fromkeys(COMPARISONS, analysis.programs["train"]))
