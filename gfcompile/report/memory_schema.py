"""The part of report.json about memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gfcompile.report.numbers_are import COUNTED, Counted


@dataclass(frozen=True, kw_only=True)
class ConvInputs:
    """The inputs of the trained convolutions: the memory column of the paper's Table 2."""

    numbers_are: Counted = COUNTED
    exact_bytes: int
    filtered_bytes: int


@dataclass(frozen=True, kw_only=True)
class SurveyMemory:
    """What can be said of memory before anything is lowered."""

    numbers_are: Counted = COUNTED
    conv_inputs: ConvInputs


@dataclass(frozen=True)
class Kept:
    """One tensor that crosses to backward; `kind` is x_tilde, mask, statistic, activation or loss."""

    node: str
    layer: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    why: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class FullGradient:
    """A gradient that exists at full resolution, and why."""

    node: str
    shape: tuple[int, ...]
    bytes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class MemoryTotals:
    """Bytes that a training step holds; `scratch` is the rest of the arena."""

    weights: int
    optimizer_state: int
    saved_activations: int
    scratch: int


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compute the training step."""

    saved_bytes: int
    arena_bytes: int


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Exact, filtered as published, and the step that is built."""

    exact: Variant
    published: Variant
    this_step: Variant


@dataclass(frozen=True, kw_only=True)
class Memory(SurveyMemory):
    """The memory plan. `state_bytes` are by role, with their total."""

    saved_bytes: int
    exact_saved_bytes: int
    arena_bytes: int  # of the largest program: they share one arena
    arena_bytes_by_program: Mapping[str, int]
    scratch_bytes_a_thread: int
    state_bytes: Mapping[str, int]
    totals: MemoryTotals
    side_by_side: SideBySide
    saved: tuple[Kept, ...]
    full_resolution_gradients: tuple[FullGradient, ...]
