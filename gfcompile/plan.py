"""Which layers are trained, which are filtered, with which patch: the user's wishes applied to a survey."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from gfcompile.errors import UserError
from gfcompile.geometry.channel_draws import Draw, drawn_channels
from gfcompile.geometry.convolution import ConvGeometry
from gfcompile.settings.schema import DEFAULT_PATCH, Request
from gfcompile.settings.words import option

T = TypeVar("T")


@dataclass(frozen=True)
class Layer:
    """A module with parameters, in order of execution.

    `unfilterable` says why a convolution must stay exact, `undrawable` why all its channels must be updated together.
    `kernel` is the parameter that its convolution reads as the kernel; `weights` counts those of all its kernels.
    """

    name: str
    kind: str  # "conv", "linear" or "other"
    parameters: tuple[str, ...]
    geometry: ConvGeometry | None = None
    is_shortcut: bool = False
    unfilterable: str | None = None
    idle: bool = False  # the loss does not depend on it
    undrawable: str | None = None
    kernel: str | None = None
    weights: int = 0


@dataclass(frozen=True)
class PlannedLayer:
    """`r` is None for a layer that stays exact; `role` is "layer", "head", "named" or "affine".

    `channels` is how many of a convolution's input channels a step draws, to update their weights in `kernel` alone;
    None is all.
    """

    name: str
    kind: str
    role: str
    r: int | None
    geometry: ConvGeometry | None
    channels: int | None = None
    kernel: str | None = None


@dataclass(frozen=True)
class Plan:
    """What the compiler will do. `refused` are layers that were to be filtered and cannot be.

    `norms` are batch norm modes by name pattern, of which the last that fits counts; `dropout`: whether it is on.
    `undrawn` are layers of which only some channels were to be updated, and which are updated whole, with the reason.
    """

    trained: tuple[PlannedLayer, ...]
    trained_parameters: frozenset[str]
    exact: bool
    norms: Mapping[str, str]
    reference: bool
    refused: tuple[tuple[str, str], ...] = ()
    dropout: bool = False
    sparse_strategy: str = "step"
    undrawn: tuple[tuple[str, str], ...] = ()

    @property
    def batchnorm(self) -> str:
        """ "train" where any batch norm uses the batch's statistics."""
        return "train" if "train" in self.norms.values() else "eval"

    def batchnorm_of(self, layer: str) -> str:
        """The mode of this batch norm: that of the last pattern that names it."""
        return mode_of(layer, self.norms)

    def patch_of(self, layer: str) -> int | None:
        """The layer's r; None for one that is exact or not trained."""
        return next((planned.r for planned in self.trained if planned.name == layer), None)

    @property
    def sparse(self) -> tuple[PlannedLayer, ...]:
        """The layers of which a step updates drawn channels only."""
        return tuple(layer for layer in self.trained if layer.channels is not None)

    @property
    def convolutions(self) -> list[str]:
        """Names of the trained convolutions, a head aside, in order of execution."""
        return [layer.name for layer in self.trained if layer.kind == "conv" and layer.role != "head"]

    def draws(self) -> dict[str, Draw]:
        """What may be drawn in each of them."""
        return {
            layer.name: Draw.of_layer(layer.geometry, layer.channels)
            for layer in self.trained
            if layer.channels is not None and layer.geometry is not None
        }


def matches(name: str, pattern: str) -> bool:
    """A pattern names a module, everything below a module, or is a shell pattern such as `layer3.*`."""
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def mode_of(layer: str, norms: Mapping[str, str]) -> str:
    """The mode of the last pattern that names the layer."""
    return [mode for pattern, mode in norms.items() if pattern == "*" or matches(layer, pattern)][-1]


def make_plan(layers: Sequence[Layer], request: Request) -> Plan:
    """Section 2 of docs/method.md: the last N counted convolutions, the head after them, and whatever is named."""
    patches = request.patches
    ratios = dict(request.sparse or {})
    convs = [layer for layer in layers if layer.kind == "conv" and not layer.idle]
    head = _head(layers, convs)
    counted = [layer for layer in convs if not layer.is_shortcut]
    if request.layers is None or request.layers < len(counted):
        counted = [layer for layer in counted if layer not in head]
    chosen = _last(counted, head, request)
    for pattern in request.patterns:
        found = [layer.name for layer in layers if matches(layer.name, pattern)]
        if not found:
            raise UserError(f"{option('train', pattern)}: no layer has that name{_did_you_mean(pattern, layers)}")
        found = [layer.name for layer in layers if layer.name in found and not layer.idle]
        if not found:
            raise UserError(
                f"{option('train', pattern)}: the loss does not depend on that; name layers before the output it reads"
            )
        chosen = dict.fromkeys(found, "named") | chosen
    if request.train_affine:
        chosen = dict.fromkeys(_norms_behind(layers, chosen), "affine") | chosen
    chosen = _with_sharers(layers, chosen)
    _check_norms(request.norms, layers)
    frozen = {
        layer.name for layer in layers if layer.kind == "other" and mode_of(layer.name, request.norms) == "frozen"
    }
    chosen = {name: role for name, role in chosen.items() if name not in frozen}
    trained, refused, undrawn = [], [], []
    for layer in layers:
        if layer.name not in chosen:
            continue
        r = _patch(layer, chosen[layer.name], patches, request)
        if r is not None and layer.unfilterable:
            refused.append((layer.name, layer.unfilterable))
            r = None
        ratio = _ratio(layer, chosen[layer.name], ratios)
        if ratio is not None and layer.undrawable:
            undrawn.append((layer.name, layer.undrawable))
            ratio = None
        channels = drawn_channels(layer.geometry, ratio) if ratio is not None and layer.geometry is not None else None
        role = chosen[layer.name]
        trained.append(PlannedLayer(layer.name, layer.kind, role, r, layer.geometry, channels, layer.kernel))
    _check_overrides("r", patches, layers, trained)
    _check_overrides("sparse", ratios, layers, trained)
    parameters = {parameter for layer in layers if layer.name in chosen for parameter in layer.parameters}
    if not parameters:
        raise UserError(f"the plan trains nothing: use {option('layers')} or {option('train')}")
    return Plan(
        tuple(trained),
        frozenset(parameters),
        request.exact,
        request.norms,
        request.compat == "reference",
        tuple(refused),
        request.dropout,
        request.sparse_strategy,
        tuple(undrawn),
    )


def _last(counted: Sequence[Layer], head: Sequence[Layer], request: Request) -> dict[str, str]:
    """Roles of the last N counted layers and the head; a plan that only names layers trains just those."""
    if request.layers is None and request.patterns:
        return {}
    wanted = len(counted) if request.layers is None else request.layers
    if not counted and wanted:
        raise UserError(
            f"{option('layers', wanted)}: the model has no convolutions that count; name layers with {option('train')}"
        )
    if wanted > len(counted):
        raise UserError(
            f"{option('layers', wanted)}: the model has {len(counted)} convolutions that count "
            f"(shortcut projections do not); use {option('layers', len(counted))} or less"
        )
    heads = {layer.name: "head" for layer in head}
    return heads | {layer.name: "layer" for layer in counted[len(counted) - wanted :]}


def _head(layers: Sequence[Layer], convs: Sequence[Layer]) -> list[Layer]:
    """Linear layers after the last convolution; where there are none, a last 1x1 convolution is the classifier.

    A user who asks for every convolution of the model gets that one filtered like the others.
    """
    linear = [layer for layer in layers if layer.kind == "linear" and not layer.idle]
    if not convs:
        return linear[-1:]
    last = convs[-1]
    after = [layer for layer in linear if layers.index(layer) > layers.index(last)]
    if after or last.geometry is None or last.geometry.kernel != (1, 1) or len(convs) == 1:
        return after
    return [last]


def _with_sharers(layers: Sequence[Layer], chosen: dict[str, str]) -> dict[str, str]:
    """A layer that shares a parameter with a trained one is trained with it."""
    trained = {name: chosen[layer.name] for layer in layers if layer.name in chosen for name in layer.parameters}
    sharers = {
        layer.name: next(trained[name] for name in layer.parameters if name in trained)
        for layer in layers
        if layer.name not in chosen and trained.keys() & set(layer.parameters)
    }
    return chosen | sharers


def _norms_behind(layers: Sequence[Layer], chosen: Mapping[str, str]) -> list[str]:
    """The layers without a kernel of their own (batch norms) that run right after a trained convolution."""
    return [
        after.name
        for before, after in itertools.pairwise(layers)
        if before.kind == "conv" and before.name in chosen and after.kind == "other" and not after.idle
    ]


def _patch(layer: Layer, role: str, patches: Mapping[str, int | None], request: Request) -> int | None:
    if request.exact or layer.kind != "conv":
        return None
    return _setting_of(layer, role, patches, DEFAULT_PATCH)


def _ratio(layer: Layer, role: str, ratios: Mapping[str, float]) -> float | None:
    """None where all channels are updated."""
    ratio = _setting_of(layer, role, ratios, 1.0) if layer.kind == "conv" else None
    return None if ratio == 1 else ratio


def _setting_of(layer: Layer, role: str, settings: Mapping[str, T], default: T) -> T | None:
    """The last pattern that names the layer counts; what holds for all layers leaves the head alone."""
    named = [setting for pattern, setting in settings.items() if pattern != "*" and matches(layer.name, pattern)]
    if named:
        return named[-1]
    return None if role == "head" else settings.get("*", default)


def _check_overrides(
    name: str, settings: Mapping[str, object], layers: Sequence[Layer], trained: Iterable[PlannedLayer]
) -> None:
    convolutions = [layer.name for layer in trained if layer.kind == "conv"]
    for pattern, value in settings.items():
        if pattern == "*" or any(matches(each, pattern) for each in convolutions):
            continue
        where = option(name, value, pattern)
        kinds = {layer.kind for layer in layers if matches(layer.name, pattern)}
        if not kinds:
            raise UserError(f"{where}: no layer has that name{_did_you_mean(pattern, layers)}")
        if "conv" not in kinds:
            raise UserError(f"{where}: that is no convolution; name one, or leave it out")
        raise UserError(f"{where}: that layer is not a trained convolution; train it with {option('train', pattern)}")


def _check_norms(norms: Mapping[str, str], layers: Sequence[Layer]) -> None:
    for pattern, mode in norms.items():
        if pattern != "*" and not any(layer.kind == "other" and matches(layer.name, pattern) for layer in layers):
            raise UserError(
                f"{option('batchnorm', mode, pattern)}: no batch norm has that name{_did_you_mean(pattern, layers)}"
            )


def _did_you_mean(name: str, layers: Sequence[Layer]) -> str:
    close = difflib.get_close_matches(name, [layer.name for layer in layers], n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else "; `gfcompile inspect MODEL` lists them"
