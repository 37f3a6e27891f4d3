"""A pass on a graph written by hand: ten lines before it, ten after it, and everything that holds between them."""

from __future__ import annotations

import difflib
from textwrap import dedent

import torch

from gfcompile.graph.text_reader import parse_graph
from gfcompile.passes.base import Pass
from gfcompile.step import Step
from tests.passes.tiny import assert_close, assert_second_run_changes_nothing, numbers, site_names, text


def read(graph: str) -> Step:
    """The step of an indented text; shapes after calls may be left out."""
    return parse_graph(dedent(graph))


def assert_rewrites(rewrite: Pass, before: str, after: str, sites: list[str], relative: float | None = 0.0) -> None:
    """The pass turns one text into the other, at these sites; a second run changes nothing.

    Both give the same numbers in float64, to the bit or within `relative`; None for a pass that changes them.
    """
    step = read(before)
    expected = numbers(step)
    _assert_same_text(text(read(after)), text(rewrite.run(step)))
    assert site_names(step) == sites
    found = numbers(step)
    if relative is not None:
        assert found.keys() == expected.keys()
        for value, result in expected.items():
            if relative:
                assert_close(result, found[value], relative, str(value))
            else:
                assert torch.equal(result, found[value]), value
    assert_second_run_changes_nothing(rewrite, step)


def assert_leaves(rewrite: Pass, graph: str) -> None:
    """The pass finds nothing to do."""
    step = read(graph)
    before = text(step)
    _assert_same_text(before, text(rewrite.run(step)))
    assert site_names(step) == []


def _assert_same_text(expected: str, found: str) -> None:
    assert found == expected, "".join(difflib.ndiff(expected.splitlines(True), found.splitlines(True)))
