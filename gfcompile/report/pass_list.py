"""The passes in their order, with the reason for each place: `pipeline.STAGES` as rows."""

from __future__ import annotations

import inspect

from gfcompile.passes.pipeline import STAGES


def list_passes() -> list[dict[str, str]]:
    """Name, what it does (first line of its file's text), and why it stands there, for the training program."""
    rows = []
    for stage in STAGES:
        text = inspect.getdoc(inspect.getmodule(type(stage.rewrite))) or ""
        rows.append({"name": stage.rewrite.name, "what": text.splitlines()[0], "why_here": stage.why})
    return rows
