"""What the compiler says while it works: one line at a time, to whoever wants to hear it.

A room of its own, and the lowest: kernels, plans and trials all report, and none of them knows the command line.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_: object) -> None:
    """For whoever does not want to hear it."""
