"""Boards as data: one TOML per machine, read into a frozen `Target`."""

from gfcompile.targets.gpu import ARCHS, Gpu
from gfcompile.targets.host import explain_foreign
from gfcompile.targets.spec import Figure, Machine, Target, find_target, list_targets, read_target

__all__ = [
    "ARCHS",
    "Figure",
    "Gpu",
    "Machine",
    "Target",
    "explain_foreign",
    "find_target",
    "list_targets",
    "read_target",
]
