"""plan.toml: what is done with every layer, written for people to edit and read back with the line of every mistake."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from gfcompile.budget.choices import as_request
from gfcompile.errors import UserError
from gfcompile.job import Job
from gfcompile.plan import Layer
from gfcompile.runtime.tensorfile import write_atomically
from gfcompile.settings.fields import settings_of
from gfcompile.settings.planning import EXACT, FILTER, FREEZE, Choice
from gfcompile.settings.words import option
from gfcompile.stages import make_survey

FORMAT = "gfcompile-plan-1"
HOW_TO_WRITE = "`gfcompile plan MODEL --memory 2MB` writes one"
HEAD = """\
# A training plan, compiled by: gfcompile MODEL --plan {name}, with the target, the input's shape and the training
# options that it was made for.
# Edit it freely. One line per layer, in order of execution:
{fields}
# Layers that are not listed are frozen.
"""


def write_plan(path: Path, choices: Mapping[str, Choice], about: Sequence[str], remarks: Mapping[str, str]) -> None:
    """`about` are lines for the head, `remarks` stand after their layer's line."""
    width = max(len(layer) for layer in choices) + 2
    fields = "\n".join(f"#   {key:<8}{each.help}" for key, each in settings_of(Choice).items())
    lines = [HEAD.format(name=path.name, fields=fields).rstrip("\n"), "#", *(f"# {line}" for line in about), ""]
    lines += [f'format = "{FORMAT}"', "", "[layers]"]
    for layer, choice in choices.items():
        remark = f"  # {remarks[layer]}" if layer in remarks else ""
        lines.append(f"{_quoted(layer).ljust(width)} = {_inline(choice)}{remark}")
    write_atomically(path, [("\n".join(lines) + "\n").encode()])


def apply_plan(job: Job, path: Path) -> Job:
    """The job with what the file says is trained."""
    return apply_choices(job, _PlanFile(path).read(make_survey(job)))


def apply_choices(job: Job, choices: Mapping[str, Choice]) -> Job:
    """The job with these trained, and nothing else."""
    given = (job.request.layers, job.request.patterns, job.request.exact, job.request.sparse)
    if given != (None, (), False, None):
        left_out = ", ".join(option(name) for name in ("layers", "train", "exact"))
        raise UserError(f"{option('plan')}: says what is trained; leave out {left_out} and {option('sparse')}")
    strategy = job.request.sparse_strategy
    if strategy != "step" and all(choice.sparse is None for choice in choices.values()):
        raise UserError(
            f"{option('sparse_strategy', strategy)}: the plan draws no channels; give a layer of it sparse = 0.25, or"
            f" leave {option('sparse_strategy')} out"
        )
    return replace(job, request=as_request(choices, job.request))


class _PlanFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(f"{option('plan', str(path))}: {error.strerror}; {HOW_TO_WRITE}") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{option('plan', str(path))}: is not text; {HOW_TO_WRITE}") from error

    def read(self, layers: Sequence[Layer]) -> dict[str, Choice]:
        """Checked against the model's layers."""
        try:
            data = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists without an end
            raise UserError(f"{self.path}: is not TOML: {error}; mend that line") from error
        if data.get("format") != FORMAT:
            self._fail("format", f'must be format = "{FORMAT}"; `gfcompile plan` writes such files')
        for key in data:
            if key not in ("format", "layers"):
                self._fail(key, "is not known; a plan has format and [layers]")
        rows = data.get("layers")
        if not isinstance(rows, dict) or not rows:
            self._fail("[layers]", 'lists no layer; write a line such as "conv1" = { do = "exact" }')
        known = {layer.name: layer for layer in layers}
        choices = {name: self._choice(name, row, known) for name, row in rows.items()}
        if not any(choice.trains for choice in choices.values()):
            self._fail("[layers]", 'trains nothing; give a layer do = "exact" or do = "filter"')
        return choices

    def _choice(self, name: str, row: Any, known: Mapping[str, Layer]) -> Choice:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean '{close[0]}'?" if close else "`gfcompile inspect MODEL` lists them"
            self._fail(name, f"the model has no such layer; {hint}")
        if not isinstance(row, dict):
            self._fail(name, 'is not a table; write { do = "exact" }')
        fields = settings_of(Choice)
        for key in row:
            if key not in fields:
                self._fail(name, f"'{key}' is not known; a layer has {', '.join(fields)}")
        way = row.get("do")
        if way is None:
            self._fail(name, 'says not what to do; write do = "exact"')
        problem = fields["do"].check(way)
        if problem is not None:
            self._fail(name, f"do = '{way}': {problem}")
        is_conv = known[name].kind == "conv"
        return Choice(way, self._patch(name, way, row, is_conv), self._share(name, way, row, is_conv))

    def _patch(self, name: str, way: str, row: dict[str, Any], is_conv: bool) -> int | None:
        r = row.get("r")
        if way != FILTER:
            if r is not None:
                self._fail(name, f'r = {r} is for do = "filter"; remove it, or filter the layer')
            return None
        if not is_conv:
            self._fail(name, f'is not a convolution and cannot be filtered; use do = "{EXACT}" or "{FREEZE}"')
        problem = "says not over which patches; write r = 2" if r is None else settings_of(Choice)["r"].check(r)
        if problem is not None:
            self._fail(name, f"r = {r}: {problem}" if r is not None else problem)
        return r

    def _share(self, name: str, way: str, row: dict[str, Any], is_conv: bool) -> float | None:
        share = row.get("sparse")
        if share is None:
            return None
        if way == FREEZE or not is_conv:
            self._fail(name, f"sparse = {share} is for trained convolutions; remove it")
        problem = settings_of(Choice)["sparse"].check(share)
        if problem is not None:
            self._fail(name, f"sparse = {share}: {problem}")
        return float(share) if share < 1 else None

    def _fail(self, key: str, text: str) -> NoReturn:
        """Where a key stands is looked up in the text: the parser does not say."""
        pattern = re.compile(rf"""\s*["']?{re.escape(key)}["']?\s*(=|$)""")
        line = next((at for at, each in enumerate(self.text.splitlines(), 1) if pattern.match(each)), None)
        where = f"{self.path}" if line is None else f"{self.path}: line {line}"
        raise UserError(f"{where}: '{key}': {text}")


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _inline(choice: Choice) -> str:
    parts = [f'do = "{choice.do}"']
    if choice.r is not None:
        parts.append(f"r = {choice.r}")
    if choice.sparse is not None:
        parts.append(f"sparse = {choice.sparse:g}")
    return f"{{ {', '.join(parts)} }}"
