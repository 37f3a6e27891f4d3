"""The `Report` of an analysis, and the part of it that needs no lowering."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from gfcompile.passes.prefix import FORMATS
from gfcompile.plan import Layer, Plan, PlannedLayer
from gfcompile.report.counts import Flops, exact_flops, filtered_flops, kept_bytes
from gfcompile.report.estimate import make_estimate
from gfcompile.report.machine_schema import TargetPart
from gfcompile.report.memory import count_conv_inputs, make_memory
from gfcompile.report.memory_schema import SurveyMemory
from gfcompile.report.schema import (
    FlopsRow,
    ForwardFlops,
    FrozenFlops,
    KeptBytes,
    LayerRow,
    OptimizerPart,
    PassRow,
    PlanPart,
    PrefixPart,
    Report,
    SurveyReport,
    TrainedFlops,
)
from gfcompile.report.sparse import make_sparse
from gfcompile.report.tuning import make_tuning
from gfcompile.step import Refusal
from gfcompile.version import __version__

if TYPE_CHECKING:
    from gfcompile.geometry.convolution import ConvGeometry
    from gfcompile.job import Analysis

PACKAGES = {"torch": "torch", "tvm": "apache-tvm", "numpy": "numpy"}


def make_report(analysis: Analysis) -> Report:
    """Everything that report.json holds, a GPU's kernels aside: they are not assembled yet."""
    refusals = [(refusal.layer, refusal.reason) for refusal in analysis.refusals]
    survey = survey_report(analysis.layers, analysis.plan, refusals, analysis.job.example[0].shape)
    target = analysis.scheduler.target
    return Report(
        input_shape=survey.input_shape,
        plan=survey.plan,
        sparse=survey.sparse,
        layers=survey.layers,
        memory=make_memory(analysis),
        refusals=survey.refusals,
        versions=survey.versions,
        prefix=_prefix(analysis),
        loss=analysis.job.loss.name,
        optimizer=OptimizerPart(analysis.job.optimizer, analysis.job.lr),
        target=TargetPart(name=target.name, description=target.description, kind=target.kind),
        estimate=make_estimate(analysis),
        tuning=make_tuning(analysis),
        kernels={name: len(planned.program.functions) for name, planned in analysis.programs.items()},
        passes=tuple(
            PassRow(program=program, name=event.pass_name, sites=tuple(event.sites), seconds=round(event.seconds, 4))
            for program in analysis.programs
            for event in analysis.steps[program].log
        ),
    )


def survey_report(
    layers: Sequence[Layer], plan: Plan, refusals: Iterable[tuple[str, str]], input_shape: Sequence[int]
) -> SurveyReport:
    """The part that needs no lowering: plan, layers with their FLOPs and bytes, the conv-input table, refusals."""
    reasons = dict(refusals)
    planned = {layer.name: layer for layer in plan.trained}
    first = plan.trained[0].name if plan.trained else None
    return SurveyReport(
        input_shape=tuple(int(size) for size in input_shape),
        plan=PlanPart(
            trained=tuple(layer.name for layer in plan.trained),
            filtered=tuple(layer.name for layer in plan.trained if layer.r is not None and layer.name not in reasons),
            exact=plan.exact,
            batchnorm=plan.batchnorm,
            compat="reference" if plan.reference else None,
            trained_parameters=tuple(sorted(plan.trained_parameters)),
        ),
        sparse=make_sparse(layers, plan),
        layers=tuple(_layer(layer, planned.get(layer.name), reasons, plan, layer.name == first) for layer in layers),
        memory=SurveyMemory(conv_inputs=count_conv_inputs(plan, reasons)),
        refusals=tuple(Refusal(layer, reason) for layer, reason in reasons.items()),
        versions=_versions(),
    )


def _prefix(analysis: Analysis) -> PrefixPart:
    """What a cache of the frozen part's features saves, whether it was compiled or not."""
    prefix = analysis.prefix
    return PrefixPart(
        multiply_adds=prefix.multiply_adds,
        step_multiply_adds=prefix.step_multiply_adds,
        share=round(prefix.share, 4),
        bytes_a_sample={kind: prefix.bytes_a_sample(kind) for kind in FORMATS},
        features=tuple(tuple(int(size) for size in node.meta["val"].shape) for node in prefix.features),
        endings=tuple(prefix.endings),
        refusal=prefix.refusal,
        compiled=analysis.job.cache_prefix,
    )


def _layer(
    layer: Layer, planned: PlannedLayer | None, reasons: Mapping[str, str], plan: Plan, is_first: bool
) -> LayerRow:
    refused = reasons.get(layer.name)
    r = planned.r if planned is not None and refused is None else None
    channels = planned.channels if planned is not None else None
    flops: TrainedFlops | FrozenFlops | None = None
    kept: KeptBytes | None = None
    if layer.geometry is not None and planned is None:
        flops = FrozenFlops(exact=ForwardFlops(forward=exact_flops(layer.geometry).forward))
    elif layer.geometry is not None:
        flops = _trained_flops(layer.geometry, r, channels, plan.reference, is_first)
        kept = KeptBytes(exact=kept_bytes(layer.geometry), filtered=kept_bytes(layer.geometry, r, channels))
    return LayerRow(
        name=layer.name,
        kind=layer.kind,
        trained=planned is not None,
        filtered=r is not None,
        r=r,
        channels=channels,
        role=planned.role if planned is not None else "frozen",
        is_shortcut=layer.is_shortcut,
        refusal=refused,
        geometry=layer.geometry,
        flops=flops,
        kept_bytes=kept,
    )


def _trained_flops(
    geometry: ConvGeometry, r: int | None, channels: int | None, reference: bool, is_first: bool
) -> TrainedFlops:
    """Nothing before the first trained layer wants a gradient, so its g_x is never computed."""
    if r is None:
        used = exact_flops(geometry, not is_first, channels)
    else:
        used = filtered_flops(geometry, r, reference, not is_first, channels)
    return TrainedFlops(exact=_flops(exact_flops(geometry, not is_first)), filtered=_flops(used))


def _flops(flops: Flops) -> FlopsRow:
    return FlopsRow(**dataclasses.asdict(flops), backward=flops.backward, total=flops.total)


def _versions() -> dict[str, str]:
    found = {"gfcompile": __version__, "python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found
