"""The manifest: what an artifact says of itself, and the description that its library's tables are made of too."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from typing import Any

import torch
import tvm

from gfcompile.codegen.description import About, Description, Drawn, Entry, describe
from gfcompile.frontend.losses import main_output
from gfcompile.frontend.trace import output_keys
from gfcompile.job import Analysis
from gfcompile.passes.prefix import fingerprint
from gfcompile.runtime.manifest import FORMAT
from gfcompile.step import Role
from gfcompile.version import __version__

LIBRARY = "libstep.so"


def make_manifest(analysis: Analysis, name: str, build_id: str, debug: bool) -> dict[str, Any]:
    """All of manifest.json but the hashes of the other files."""
    job, plan = analysis.job, analysis.plan
    description = describe_step(analysis, name)
    about = description.about
    keys = output_keys(analysis.output)
    outputs = [
        {"key": keys[index] if keys else None, **entry.as_mapping()} for index, entry in enumerate(description.outputs)
    ]
    return {
        "format": FORMAT,
        "name": name,
        "build_id": build_id,
        "library": LIBRARY,
        "batch": about.batch,
        "lr": job.lr,
        "checkpoint": {"compatible": about.compatible, "frozen": about.frozen},
        "loss": {
            "name": job.loss.name,
            "per_sample": job.loss.per_sample,
            "settings": dict(job.loss.settings),
            "classes": about.classes,
        },
        "optimizer": {
            **job.optimizer.as_mapping(),
            "state_bytes": sum(entry.bytes for entry in analysis.state.of_role(Role.OPTIMIZER)),
        },
        "inputs": [entry.as_mapping() for entry in description.inputs],
        "outputs": outputs,
        **_features(analysis, description),
        "state": [entry.with_layout() for entry in description.state],
        "gradients": [entry.name for entry in description.gradients],
        "state_dict": list(analysis.original),
        "shared": analysis.shared,
        "plan": {
            "trained": [
                {"layer": layer.name, "role": layer.role, "r": layer.r, "channels": layer.channels}
                for layer in plan.trained
            ],
            "exact": plan.exact,
            "compat": "reference" if plan.reference else None,
            "sparse_strategy": plan.sparse_strategy,
        },
        "filtered_layers": analysis.filtered_layers,
        "refusals": [[refusal.layer, refusal.reason] for refusal in analysis.refusals],
        "batchnorm": plan.batchnorm,
        "norms": dict(plan.norms),
        "dropout": plan.dropout,
        "target": analysis.scheduler.target.name,
        "architecture": analysis.scheduler.target.architecture,
        "debug": debug,
        "versions": {
            "gfcompile": __version__,
            "torch": torch.__version__,
            "tvm": tvm.__version__,
            "python": platform.python_version(),
        },
    }


def _features(analysis: Analysis, description: Description) -> dict[str, Any]:
    """The values at the cut, with the batch as their first axis, and the fingerprint of what they depend on."""
    if "features" not in analysis.programs:
        return {}
    key = fingerprint(analysis.steps["features"], __version__)
    return {"features": {"fingerprint": key, "tensors": [entry.as_mapping() for entry in description.features]}}


def describe_step(analysis: Analysis, name: str) -> Description:
    """What the driver's tables and the manifest are both made of; `name` is the artifact's."""
    job, state = analysis.job, analysis.state
    roles = {value.role for value in analysis.steps["train"].inputs}
    about = About(
        name=name,
        target=analysis.scheduler.target.name,
        version=__version__,
        loss=job.loss.name,
        lr=job.lr,
        batch=int(job.example[0].shape[0]),
        pads=job.loss.per_sample and Role.SAMPLE_WEIGHT in roles and analysis.plan.batchnorm != "train",
        classes=main_output(analysis.output).shape[1] if job.loss.name == "cross_entropy" else None,
        ignored=dict(job.loss.settings).get("ignore_index"),
        compatible=_compatible_key(state.of_role(Role.PARAMETER)),
        frozen=_frozen_key(analysis),
    )
    steps = {program: analysis.steps[program] for program in analysis.programs}
    return describe(steps, state.entries, about, _draws(analysis), analysis.plan.sparse_strategy)


def _draws(analysis: Analysis) -> dict[str, Drawn]:
    """By layer. Strategy "norm" decides now."""
    found: dict[str, Drawn] = {}
    kernels = {layer.name: layer.kernel for layer in analysis.plan.sparse}
    for name, draw in analysis.plan.draws().items():
        always: list[int] = []
        kernel = kernels[name]
        if analysis.plan.sparse_strategy == "norm" and kernel is not None:
            always = draw.largest(analysis.original[kernel].numpy())
        found[name] = Drawn(draw, tuple(always))
    return found


def _compatible_key(parameters: Sequence[Entry]) -> str:
    """Names and shapes of what is trained: whatever the target, the patch or the layout, a checkpoint fits."""
    rows = sorted([entry.name, list(entry.shape)] for entry in parameters)
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _frozen_key(analysis: Analysis) -> str:
    """Hash of what is not trained: a checkpoint makes sense over the same frozen weights only."""
    kept = {entry.name for entry in analysis.state.of_role(Role.PARAMETER, Role.BUFFER)}
    digest = hashlib.sha256()
    for name, tensor in sorted(analysis.original.items()):
        if name not in kept:
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
