"""Where a plan is written: plan.toml, and beside it plan.json and plan.svg. Looked at before a long search."""

from __future__ import annotations

from pathlib import Path

from gfcompile.errors import UserError
from gfcompile.settings.words import option

SUFFIX, BESIDE = ".toml", (".json", ".svg")


def check_out(path: Path, fresh: bool = True) -> None:
    """Whether a plan can be written there; `fresh`: and whether nothing is there yet."""
    if path.suffix != SUFFIX:
        raise UserError(f"{option('out', str(path))}: a plan's name ends in {SUFFIX}; use {path.with_suffix(SUFFIX)}")
    if not path.parent.is_dir():
        raise UserError(f"{option('out', str(path))}: there is no folder {path.parent}; make it, or choose another")
    for each in (path, *map(path.with_suffix, BESIDE)):
        if fresh and each.exists():
            beside = "" if each == path else f"{each.name} beside it "
            raise UserError(
                f"{option('out', str(path))}: {beside}is there already, and may have been edited; remove it, or"
                " choose another"
            )
