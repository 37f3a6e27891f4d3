"""What must be installed to link for a target, and to test what was linked: present, or how to get it."""

from __future__ import annotations

import platform
import shutil
from typing import Any

from gfcompile.codegen.cuda import packages
from gfcompile.codegen.link import find_missing
from gfcompile.targets import list_targets, read_target
from gfcompile.targets.host import HOST
from gfcompile.targets.spec import Target


def list_needs() -> dict[str, dict[str, str]]:
    """Every shipped target with its description, what links it, and what runs it."""
    return {name: _needs(read_target(name)[1]) for name in list_targets()}


def _needs(fields: dict[str, Any]) -> dict[str, str]:
    """From the file alone: asking LLVM about this machine takes seconds."""
    triple = fields["tvm"]["mtriple"]
    architecture = platform.machine() if triple == HOST else triple.partition("-")[0]
    probe = Target("", "", {"mtriple": architecture}, 1, 1, 1, 1, fields["link"])
    link = [_state(fields["link"][0], find_missing(probe))]
    if fields.get("kind") == "cuda":
        link.append(_state("NVRTC and ptxas", packages.find_missing()))
    return {"description": fields["description"], "link": ", ".join(link), "test": _tester(fields, architecture)}


def _tester(fields: dict[str, Any], architecture: str) -> str:
    if fields["tvm"]["mtriple"] == HOST:
        return "a GPU in this machine" if "gpu" in fields else "this machine"
    if architecture == platform.machine():
        return "this machine, if its CPU has the instructions"
    if "emulator" not in fields:
        return "the board"
    program = fields["emulator"][0]
    return _state(program, None if shutil.which(program) else "not found; apt install qemu-user-static")


def _state(what: str, missing: str | None) -> str:
    return f"{what}: {missing or 'present'}"
