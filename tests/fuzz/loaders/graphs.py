"""Graphs as text, which people write by hand."""

from __future__ import annotations

from gfcompile.graph.text import print_graph
from gfcompile.graph.text_reader import parse_graph
from tests.fuzz.check import Check, refused
from tests.fuzz.mutate import change_tokens


def read(data: bytes) -> None:
    step = refused(parse_graph, data.decode(errors="replace"))
    if step is not None:
        text = print_graph(step, "")
        if print_graph(parse_graph(text), "") != text:
            raise AssertionError("what was printed reads back as something else")


CHECK = Check(read, change_tokens)
