"""`Report`, all that report.json holds, with its parts; `json_form.py` writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from gfcompile.errors import UserError
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.optimizers import Optimizer, resolve_optimizer
from gfcompile.passes.prefix import Ending
from gfcompile.report.machine_schema import Estimate, GpuPart, NoEstimate, TargetPart, Tuning
from gfcompile.report.memory_schema import Memory, SurveyMemory
from gfcompile.report.numbers_are import COUNTED, MEASURED, Counted, Measured
from gfcompile.step import Refusal

FORMAT: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class PlanPart:
    """The layers that are trained, those of them that are filtered, and by which rules."""

    trained: tuple[str, ...]
    filtered: tuple[str, ...]
    exact: bool
    batchnorm: str
    compat: str | None
    trained_parameters: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Sparse:
    """What a step updates of all convolution weights, and the layers that it updates whole though not asked to."""

    numbers_are: Counted = COUNTED
    strategy: str
    layers: int
    updated_weights: int
    convolution_weights: int
    share: float
    undrawn: tuple[Refusal, ...]


@dataclass(frozen=True, kw_only=True)
class FlopsRow:
    """FLOPs of one convolution in a step, as `counts.Flops` has them, with their sums."""

    forward: int
    input_gradient: int
    weight_gradient: int
    forward_overhead: int
    backward_overhead: int
    backward: int
    total: int


@dataclass(frozen=True, kw_only=True)
class ForwardFlops:
    """Of a convolution that computes no gradient."""

    forward: int


@dataclass(frozen=True, kw_only=True)
class FrozenFlops:
    """A convolution that is not trained."""

    numbers_are: Counted = COUNTED
    exact: ForwardFlops


@dataclass(frozen=True, kw_only=True)
class TrainedFlops:
    """A trained convolution: with exact gradients, and as the plan has it."""

    numbers_are: Counted = COUNTED
    exact: FlopsRow
    filtered: FlopsRow


@dataclass(frozen=True, kw_only=True)
class KeptBytes:
    """What a trained convolution's input costs from forward to backward: whole, and as the plan has it."""

    numbers_are: Counted = COUNTED
    exact: int
    filtered: int


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """A layer of the model, trained or not; `geometry` and `flops` are a convolution's."""

    name: str
    kind: str
    trained: bool
    filtered: bool
    r: int | None
    channels: int | None  # drawn in a step; None is all
    role: str
    is_shortcut: bool
    refusal: str | None
    geometry: ConvGeometry | None
    flops: TrainedFlops | FrozenFlops | None
    kept_bytes: KeptBytes | None


@dataclass(frozen=True, kw_only=True)
class PrefixPart:
    """The frozen part, whose features a cache can keep: `share` is its part of a step's multiply-adds.

    `bytes_a_sample` are by the type that features are stored as; `compiled`: whether the step can use a cache.
    """

    numbers_are: Counted = COUNTED
    multiply_adds: int
    step_multiply_adds: int
    share: float
    bytes_a_sample: Mapping[str, int]
    features: tuple[tuple[int, ...], ...]  # shapes
    endings: tuple[Ending, ...]
    refusal: str | None
    compiled: bool


@dataclass(frozen=True)
class OptimizerPart:
    """The optimizer's settings, and the learning rate that a step starts with: one object in the file."""

    settings: Optimizer
    lr: float

    def as_data(self) -> dict[str, object]:
        """The settings as a mapping, with the learning rate among them."""
        return {**self.settings.as_mapping(), "lr": self.lr}

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> Self:
        """Resolve the settings again; ValueError where they are not exactly an optimizer's."""
        lr, groups = data.get("lr"), data.get("groups")
        if not isinstance(lr, int | float) or not isinstance(groups, dict):
            raise ValueError(f"optimizer: lr '{lr}' is no number, or groups '{groups}' are no mapping")
        if not all(isinstance(settings, dict) for settings in groups.values()):
            raise ValueError(f"optimizer: groups '{groups}' have settings that are no mapping")
        try:
            found = cls(resolve_optimizer(data), lr)
        except UserError as error:
            raise ValueError(str(error)) from error
        if found.as_data().keys() != data.keys():
            raise ValueError(f"optimizer: '{found.settings.name}' has other settings than {', '.join(data)}")
        return found


@dataclass(frozen=True, kw_only=True)
class PassRow:
    """What one pass did to one program, and how long it took."""

    program: str
    name: str
    sites: tuple[str, ...]
    seconds: float
    seconds_are: Measured = MEASURED


@dataclass(frozen=True, kw_only=True)
class SurveyReport:
    """The part that needs no lowering: what `gfcompile inspect --quick` shows."""

    format: Literal[1] = FORMAT
    numbers_are: Counted = COUNTED
    input_shape: tuple[int, ...]
    plan: PlanPart
    sparse: Sparse | None
    layers: tuple[LayerRow, ...]
    memory: SurveyMemory
    refusals: tuple[Refusal, ...]
    versions: Mapping[str, str]  # by package


@dataclass(frozen=True, kw_only=True)
class Report(SurveyReport):
    """All of report.json; `kernels` counts those of each program. Only a step for a GPU has `gpu`."""

    memory: Memory
    prefix: PrefixPart
    loss: str
    optimizer: OptimizerPart
    target: TargetPart
    estimate: Estimate | NoEstimate
    tuning: Tuning
    kernels: Mapping[str, int]
    passes: tuple[PassRow, ...]
    gpu: GpuPart | None = None
