"""What the numbers of a part of report.json are: its key `numbers_are`. The kinds are never mixed."""

from __future__ import annotations

from typing import Literal

Counted = Literal["counted"]
Measured = Literal["measured"]
Estimated = Literal["estimate (roofline, no measurement)"]
CountedByPtxas = Literal["counted by ptxas; occupancy from these and the limits of the architecture"]
COUNTED: Counted = "counted"
MEASURED: Measured = "measured"
ESTIMATED: Estimated = "estimate (roofline, no measurement)"
COUNTED_BY_PTXAS: CountedByPtxas = "counted by ptxas; occupancy from these and the limits of the architecture"
