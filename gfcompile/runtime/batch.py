"""The door: every check on a batch, then its staging. A batch that fails a check has changed nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import StepError
from .library import ALIGNMENT, aligned_empty
from .tensorfile import Array


@dataclass(frozen=True)
class Slot:
    """One input of the compiled step, and the word the user knows it by (`x`, `y`, `features`, or `x[1]`)."""

    label: str
    role: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    staging: Array


LABELS = {"input": "x", "feature": "features", "target": "y"}
INT32 = np.iinfo(np.int32)
WITHOUT_TARGET = ("predict", "features")


class Door:
    """Turns what a user passes into the arrays that the library reads.

    With `features`, those stand in place of the model's inputs.
    """

    def __init__(self, manifest: dict[str, Any], features: bool = False) -> None:
        self.samples_are = "feature" if features else "input"
        self.batch: int = manifest["batch"]
        self.loss: dict[str, Any] = manifest["loss"]
        self.batchnorm: str = manifest["batchnorm"]
        specs = manifest["inputs"]
        if features:
            specs = manifest["features"]["tensors"] + [spec for spec in specs if spec["role"] != "input"]
        roles = [spec["role"] for spec in specs]
        self.slots: list[Slot] = []
        for index, spec in enumerate(specs):
            role, shape = spec["role"], tuple(spec["shape"])
            label = LABELS.get(role, role)
            if roles.count(role) > 1:
                label += f"[{roles[:index].count(role)}]"
            self.slots.append(
                Slot(label, role, spec["name"], shape, spec["dtype"], aligned_empty(shape, spec["dtype"]))
            )

    def stage(
        self, call: str, x: Any, y: Any = None, seed: int = 0, channels: Mapping[str, Any] | None = None
    ) -> tuple[list[Array | None], int]:
        """Arrays in the manifest's order, and the number of real samples. Predict and features look at `x` alone.

        None stands for channels that nobody gave: the library draws them.
        """
        found = self._distribute(call, self.samples_are, x)
        trains = call not in WITHOUT_TARGET
        if trains:
            found += self._distribute(call, "target", y)
        checked = {slot.label: self._check(call, slot, value) for slot, value in found}
        counts = {label: len(array) for label, array in checked.items()}
        (first, samples), *others = counts.items()
        for label, count in others:
            if count != samples:
                raise StepError(f"{call}: {first} has {samples} samples and {label} has {count}; pass equally many")
        if samples < self.batch and trains:
            self._check_padding(call, samples)
        given = {} if channels is None else self._check_channels(call, channels)
        staged: list[Array | None] = []
        for slot in self.slots:
            if slot.label in checked:
                staged.append(_fill(slot, checked[slot.label]))
            elif slot.role == "sample_weight" and trains:
                slot.staging[...] = np.arange(self.batch) < samples
                staged.append(slot.staging)
            elif slot.role == "seed" and trains:
                slot.staging[...] = seed
                staged.append(slot.staging)
            elif slot.role == "channels" and trains:
                staged.append(given.get(slot.name))
        return staged, samples

    def _check_channels(self, call: str, channels: Mapping[str, Any]) -> dict[str, Array]:
        """The caller's own draws by layer; which channels can be drawn together, the library knows."""
        slots = {slot.name: slot for slot in self.slots if slot.role == "channels"}
        if not isinstance(channels, Mapping):
            kind = type(channels).__name__
            raise StepError(f"{call}: channels are a '{kind}'; pass a dictionary from layers to their channels")
        for layer, value in channels.items():
            if layer not in slots:
                known = ", ".join(slots) or "none: this step updates all of them"
                raise StepError(f"{call}: channels of '{layer}': drawn are those of {known}")
            array = _as_array(f"{call}: channels of '{layer}'", value)
            wanted = slots[layer].shape
            if array.dtype.kind not in "iu" or array.shape != wanted:
                raise StepError(
                    f"{call}: channels of '{layer}' are {array.dtype} {array.shape}; pass {wanted[0]} whole numbers"
                )
            beyond = np.flatnonzero((array < INT32.min) | (array > INT32.max))  # a copy would wrap around
            if beyond.size:
                raise StepError(
                    f"{call}: channels of '{layer}': {array[beyond[0]]} does not fit at place {beyond[0]};"
                    f" give {wanted[0]} of the layer's input channels, ascending"
                )
            slots[layer].staging[...] = array
        return {layer: slots[layer].staging for layer in channels}

    def _distribute(self, call: str, role: str, value: Any) -> list[tuple[Slot, Any]]:
        label = LABELS[role]
        slots = [slot for slot in self.slots if slot.role == role]
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if len(values) != len(slots):
            what = f"{label} is a tuple of {len(values)}" if values else f"{label} is missing"
            wanted = "one array" if len(slots) == 1 else f"a tuple of {len(slots)} arrays"
            raise StepError(f"{call}: {what}; this step takes {wanted} as {label}")
        return list(zip(slots, values, strict=True))

    def _check(self, call: str, slot: Slot, value: Any) -> Array:
        where = f"{call}: {slot.label}"
        array = _as_array(where, value)
        wanted = ", ".join(["N", *map(str, slot.shape[1:])]) + ("," if len(slot.shape) == 1 else "")
        if array.ndim != len(slot.shape) or array.shape[1:] != slot.shape[1:]:
            raise StepError(
                f"{where} has shape {array.shape}, expected ({wanted}) with N at most {self.batch};"
                " reshape it, or recompile for this shape"
            )
        _check_dtype(where, slot, array)
        if len(array) == 0:
            raise StepError(f"{where} is empty; pass 1 to {self.batch} samples")
        if len(array) > self.batch:
            raise StepError(
                f"{where} has {len(array)} samples, more than the compiled batch {self.batch};"
                f" split it, or recompile with --batch {len(array)}"
            )
        if array.dtype.kind == "f":
            _check_finite(where, array)
        classes = self.loss.get("classes")
        if slot.role == "target" and classes is not None and array.dtype.kind in "iu":
            _check_labels(where, array, classes, self.loss.get("settings", {}).get("ignore_index"))
        return array

    def _check_padding(self, call: str, samples: int) -> None:
        if self.batchnorm == "train":
            reason, remedy = "batchnorm 'train' would count the padding in its statistics", "--batchnorm eval or "
        elif not self.loss.get("per_sample") or not any(slot.role == "sample_weight" for slot in self.slots):
            reason, remedy = f"loss '{self.loss['name']}' has no per-sample weight to leave the padding out", ""
        else:
            return
        raise StepError(
            f"{call}: {samples} samples, but the compiled batch is {self.batch} and {reason};"
            f" pass {self.batch} samples, or recompile with {remedy}--batch {samples}"
        )


def _as_array(where: str, value: Any) -> Array:
    """CPU tensors arrive through `detach` and the array protocol, without an import of torch."""
    try:
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StepError(f"{where} is no array ({reason}); pass a numpy array or a CPU tensor") from error
    if array.dtype.kind not in "biuf":
        raise StepError(f"{where} has dtype {array.dtype}; pass a numpy array of numbers or a CPU tensor")
    return array


def _check_dtype(where: str, slot: Slot, array: Array) -> None:
    if array.dtype == slot.dtype or (slot.dtype == "int64" and array.dtype.kind in "iu"):
        return
    what = "integer" if slot.dtype == "int64" else slot.dtype
    raise StepError(f"{where} has dtype {array.dtype}, expected {what}; pass {slot.label}.astype('{slot.dtype}')")


def _check_finite(where: str, array: Array) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    sample = int(np.argwhere(~finite)[0][0])
    what = "NaN" if np.isnan(array[sample]).any() else "Inf"
    raise StepError(f"{where}: sample {sample} holds {what}; repair the sample or leave it out")


def _check_labels(where: str, array: Array, classes: int, ignored: int | None) -> None:
    bad = (array < 0) | (array >= classes)
    if ignored is not None:
        bad &= array != ignored
    if not bad.any():
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    place = index[0] if len(index) == 1 else index
    raise StepError(
        f"{where}: label {array[index]} at index {place} is outside 0 to {classes - 1};"
        f" the model has {classes} classes, so renumber the labels"
    )


def _fill(slot: Slot, array: Array) -> Array:
    """The array itself when the kernels can read it in place, else a copy.

    Padding repeats sample 0: as finite as the batch is, where a row of zeros may divide by zero inside the network
    and a weight of zero would not stop the NaN.
    """
    ready = array.shape == slot.shape and array.dtype == slot.dtype and array.flags.c_contiguous
    if ready and array.dtype.isnative and array.ctypes.data % ALIGNMENT == 0:
        return array
    slot.staging[: len(array)] = array
    slot.staging[len(array) :] = slot.staging[:1]
    return slot.staging
