"""Winograd's filtering or the plain sum, decided by trials: what was measured of a convolution's shape is followed."""

from __future__ import annotations

from gfcompile.codegen.tuned.database import Databases
from gfcompile.codegen.tuned.keys import target_key
from gfcompile.geometry.winograd import EDGES, Choose, Convolution, choose_edge
from gfcompile.targets import Target

PLAIN = "plain"
ALGORITHMS: dict[str, int | None] = {PLAIN: None, **{f"winograd-{edge}": edge for edge in EDGES}}


def name_of(edge: int | None) -> str:
    """The algorithm with this edge; None is the plain sum."""
    return next(name for name, each in ALGORITHMS.items() if each == edge)


def choose_by(tuning: Databases, target: Target) -> Choose:
    """What a trial found to be surely faster on this machine; where none did, what counting says."""
    machine = target_key(target)

    def choose(convolution: Convolution) -> int | None:
        record = tuning.best(convolution.key, machine)
        if record is None or record.template not in ALGORITHMS:
            return choose_edge(convolution)
        return ALGORITHMS[record.template]

    return choose
