"""Filtered gradients against exact ones, layer by layer, on a batch.

Two questions are answered, for every patch edge r:

* `alone`: this layer is filtered and nothing else. Its g_y is the exact one, so what is seen is its own noise: in g_w,
  in the g_x that it hands back, and in g_y once it is averaged over patches. Proposition 1 compares the last two.
* `together`: all chosen layers are filtered with this r. What arrives at a layer carries the noise of later layers
  it (`gy`), and its own comes on top (`gw`, `gx`).

The graphs are the traced ones and run in plain PyTorch: what TVM cannot compile can still be measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, fx

from gfcompile.errors import UserError
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.geometry.filtering import FilterRecipe
from gfcompile.graph.ownership import layer_of, module_of
from gfcompile.job import Job
from gfcompile.noise.similarity import Comparison, Likeness, compare
from gfcompile.noise.spectrum import KernelEnergy, kernel_energy
from gfcompile.ops import gf
from gfcompile.passes.canonicalize import Canonicalize
from gfcompile.passes.pipeline import run
from gfcompile.passes.select import BACKWARD, Select
from gfcompile.passes.static_moves import StaticMoves
from gfcompile.progress import Progress, silent
from gfcompile.stages import trace
from gfcompile.step import Role, Step, Value
from gfcompile.verify.eager import run_eagerly

FILTERED = gf.filtered_convolution_backward.default
Gradients = tuple[Tensor | None, Tensor, Tensor]  # gx, gw, gy
TIED = "its kernel is another layer's, which is measured with the gradients of both"


@dataclass(frozen=True)
class Noise:
    """Filtered against exact, of one layer at one r. `gx` is None where nobody reads it."""

    gw: Likeness
    gx: Likeness | None
    gy: Likeness


@dataclass(frozen=True)
class LayerNoise:
    """Everything measured of one layer; the keys are patch edges."""

    layer: str
    geometry: ConvGeometry
    energy: KernelEnergy
    alone: Mapping[int, Noise]
    together: Mapping[int, Noise]


@dataclass(frozen=True)
class Measured:
    """Layers in order of execution; `whole` compares the gradients of all trained kernels as one vector, by r: those of
    biases and of the head are never filtered, and would drown the others.

    `refused` are layers that cannot be filtered, with the reason. `gw_squared` is |gw|^2 of the exact gradient of every
    trained convolution, those too.
    """

    samples: int
    loss: float
    layers: Sequence[LayerNoise]
    whole: Mapping[int, Likeness]
    refused: Sequence[tuple[str, str]]
    gw_squared: Mapping[str, float]


def measure(job: Job, y: Tensor, edges: Sequence[int], progress: Progress = silent) -> Measured:
    """Measure the layers that the job's request chooses, on the batch `job.example` with the target `y`."""
    traced = trace(job, progress)
    plan = traced.plan
    step = run(traced.training.duplicate(plan), [StaticMoves(), Canonicalize()])
    owners = set(_sites(step, [layer.name for layer in plan.trained]).values())
    wanted = [layer.name for layer in plan.trained if layer.r is not None]
    chosen = [name for name in wanted if name in owners]
    refused = [*plan.refused, *((name, TIED) for name in wanted if name not in owners)]
    progress("exact gradients")
    alone = _Alone(step, chosen, edges)
    exact = run_eagerly(step, job.example, y, visit=alone)
    loss = next(float(tensor) for value, tensor in exact.items() if value.role is Role.LOSS)
    _check_finite(job, y, loss, exact)
    together: dict[int, _Together] = {}
    whole: dict[int, Likeness] = {}
    for r in edges if chosen else ():
        progress(f"filtered together, r={r}")
        filtered = _filter(step, dict.fromkeys(chosen, r))
        together[r] = _Together(filtered, chosen, alone.exact)
        whole[r] = _whole(step, exact, run_eagerly(filtered, job.example, y, visit=together[r]))
    layers = [
        LayerNoise(
            name,
            geometry,
            alone.energy[name],
            {r: alone.balances[name, r].result() for r in edges},
            {r: together[r].balances[name].result() for r in edges},
        )
        for name, geometry in ((name, alone.geometry[name]) for name in chosen)
    ]
    return Measured(job.example[0].shape[0], loss, layers, whole, refused, _kernel_norms(exact, owners))


def measure_plan(job: Job, y: Tensor) -> Likeness:
    """The gradients of all trained kernels, each layer filtered as the job's request says, against exact ones."""
    traced = trace(job)
    step = run(traced.training.duplicate(traced.plan), [StaticMoves(), Canonicalize()])
    exact = run_eagerly(step, job.example, y)
    found = run_eagerly(run(step.duplicate(step.plan), [Select()]), job.example, y)
    return _whole(step, exact, found)


def _kernel_norms(exact: Mapping[Value, Tensor], owners: Collection[str]) -> dict[str, float]:
    norms = dict.fromkeys(owners, 0.0)
    for value, tensor in exact.items():
        owner = module_of(value.name)
        if value.role is Role.GRADIENT and owner in norms and tensor.dim() > 2:  # a kernel, not a bias
            norms[owner] += float(tensor.double().square().sum())
    return norms


def _check_finite(job: Job, y: Tensor, loss: float, exact: Mapping[Value, Tensor]) -> None:
    """What is not finite cannot be compared: says where it comes from."""
    gradients = {value.name: tensor for value, tensor in exact.items() if value.role is Role.GRADIENT}
    broken = [name for name, tensor in gradients.items() if not tensor.isfinite().all()]
    if math.isfinite(loss) and not broken:
        return
    what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient of '{broken[0]}' is not finite"
    weight = next((name for name, tensor in job.module.named_parameters() if not tensor.isfinite().all()), None)
    if not all(x.isfinite().all() for x in job.example):
        why = "x holds NaN or infinity; save samples without"
    elif not y.isfinite().all():
        why = "y holds NaN or infinity; save samples without"
    elif weight is not None:
        why = f"'{weight}' holds NaN or infinity; load other weights"
    else:
        why = "numbers grow too large on the way; scale x as the model was trained with"
    raise UserError(f"batch: {what}: {why}")


def _whole(step: Step, exact: Mapping[Value, Tensor], found: Mapping[Value, Tensor]) -> Likeness:
    kernels = {layer.kernel for layer in step.plan.trained if layer.role != "head"}
    comparison = Comparison()
    for value, tensor in exact.items():
        if value.role is Role.GRADIENT and value.name in kernels:
            comparison.add(tensor, found[value])
    return comparison.result()


def _filter(step: Step, patches: Mapping[str, int]) -> Step:
    """A copy of a canonical step in which these layers are filtered, each with its r, and no others."""
    trained = tuple(replace(layer, r=patches.get(layer.name)) for layer in step.plan.trained)
    return run(step.duplicate(replace(step.plan, trained=trained)), [Select()])


def _sites(step: Step, chosen: Sequence[str]) -> dict[fx.Node, str]:
    """The backward convolutions of the chosen layers; a layer that is called twice has two."""
    found = {}
    for node in step.body.graph.nodes:
        layer = layer_of(step, node.args[2]) if node.target in (BACKWARD, FILTERED) else None
        if layer in chosen and layer is not None:
            found[node] = layer
    return found


@dataclass
class _Balance:
    """Adds up the calls of one layer: its weight gradients are summed, what it hands back is compared side by side."""

    gx: Comparison = field(default_factory=Comparison)
    gy: Comparison = field(default_factory=Comparison)
    gw: tuple[Tensor, Tensor] | None = None
    has_gx: bool = False

    def add(self, exact: Gradients, found: Gradients) -> None:
        self.gw = (exact[1], found[1]) if self.gw is None else (self.gw[0] + exact[1], self.gw[1] + found[1])
        self.gy.add(exact[2], found[2])
        if exact[0] is not None and found[0] is not None:
            self.has_gx = True
            self.gx.add(exact[0], found[0])

    def result(self) -> Noise:
        gw = compare(*self.gw) if self.gw is not None else Likeness(None, None)
        return Noise(gw, self.gx.result() if self.has_gx else None, self.gy.result())


class _Alone:
    """Filters each chosen layer by itself while the exact step runs past it; keeps the exact gradients."""

    def __init__(self, step: Step, chosen: Sequence[str], edges: Sequence[int]) -> None:
        self.sites, self.edges = _sites(step, chosen), edges
        self.geometry: dict[str, ConvGeometry] = {}
        self.energy: dict[str, KernelEnergy] = {}
        self.exact: dict[str, list[Gradients]] = {name: [] for name in chosen}
        self.balances = {(name, r): _Balance() for name in chosen for r in edges}

    def __call__(self, node: fx.Node, args: tuple[Any, ...], result: Any) -> None:
        layer = self.sites.get(node)
        if layer is None:
            return
        gy, x, w, _, stride, padding, dilation, _, _, groups, wanted = args
        geometry = ConvGeometry.of(x, w, gy, stride, padding, dilation, groups)
        self.geometry[layer], self.energy[layer] = geometry, kernel_energy(w)
        gx, gw, _ = BACKWARD(*args[:-1], [True, True, False])
        self.exact[layer].append((gx if wanted[0] else None, gw, gy))
        pairs = ([stride[0], stride[-1]], [padding[0], padding[-1]], [dilation[0], dilation[-1]])
        for r in self.edges:
            filtered_gx, filtered_gw, _ = FILTERED(gy, x, w, *pairs, groups, r, False)
            rows, columns = FilterRecipe.of(geometry, r, False).out_grid
            averaged = gf.patch_broadcast(gf.patch_mean(gy, rows, columns), rows, columns, list(gy.shape[2:]))
            self.balances[layer, r].add((gx, gw, gy), (filtered_gx, filtered_gw, averaged))


class _Together:
    """Compares what a filtered step computes with the exact gradients, call by call."""

    def __init__(self, step: Step, chosen: Sequence[str], exact: Mapping[str, Sequence[Gradients]]) -> None:
        self.sites = _sites(step, chosen)
        self.exact = {name: iter(calls) for name, calls in exact.items()}
        self.balances = {name: _Balance() for name in chosen}

    def __call__(self, node: fx.Node, args: tuple[Any, ...], result: Any) -> None:
        layer = self.sites.get(node)
        if layer is not None:
            self.balances[layer].add(next(self.exact[layer]), (result[0], result[1], args[0]))
