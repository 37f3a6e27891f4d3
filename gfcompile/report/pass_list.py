"""The passes as `pipeline.py` orders them, with the reason for each place: its comment there."""

from __future__ import annotations

import inspect
import re

from gfcompile.optimizers import SGD
from gfcompile.passes import pipeline

_ENTRY = re.compile(r"^\s+(\w+)\(.*\),\s*# (.+)$", re.MULTILINE)


def list_passes() -> list[dict[str, str]]:
    """Name, what it does (first line of its file's text), and why it stands there, for the training program."""
    source = inspect.getsource(pipeline)
    reasons = {part: _reasons(source, part) for part in ("FILTERING", "LOWERING")}
    rows = []
    middle = len(pipeline.FILTERING)
    passes = pipeline.training_passes(SGD())
    tail = len(passes) - len(pipeline.LOWERING)
    for index, rewrite in enumerate(passes):
        if index < middle:
            why = reasons["FILTERING"][index]
        elif index >= tail:
            why = reasons["LOWERING"][index - tail]
        else:
            why = "the gradients are final, and lowering sees the whole step"
        text = inspect.getdoc(inspect.getmodule(type(rewrite))) or inspect.getdoc(type(rewrite)) or ""
        rows.append({"name": rewrite.name, "what": text.splitlines()[0], "why_here": why})
    return rows


def _reasons(source: str, part: str) -> list[str]:
    body = source.partition(f"\n{part}: ")[2].partition("\n)\n")[0]
    return [reason for _, reason in _ENTRY.findall(body)]
