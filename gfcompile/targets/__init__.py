"""Boards as data: one TOML a machine, read into a frozen `Target`."""

from gfcompile.targets.spec import Target, find_target, list_targets

__all__ = ["Target", "find_target", "list_targets"]
