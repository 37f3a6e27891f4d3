"""Does the manifest say of the step what the library says? Arrays are made by the one and filled by the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import StepError
from .library import FEATURE, GRADIENT, INPUT, OUTPUT, STATE, Library
from .manifest import AGAIN
from .schema import quote

_TENSOR = ("name", "role", "dtype", "shape")
_RESULT = ("name", "dtype", "shape")
_SAME_TENSOR = ("dtype", "shape", "layout")


def check_agreement(where: str, manifest: dict[str, Any], library: Library) -> None:
    """Refuse a manifest that is not the library's own; afterwards no array is smaller than the library thinks."""
    state = manifest["state"]
    _compare_all(where, "state", state, library.values(STATE), (*_TENSOR, "layout"))
    _compare_all(where, "inputs", manifest["inputs"], library.values(INPUT), _TENSOR)
    _compare_all(where, "outputs", manifest["outputs"], library.values(OUTPUT), _RESULT)
    features = manifest.get("features", {"tensors": []})["tensors"]
    _compare_all(where, "features.tensors", features, library.values(FEATURE), _TENSOR)
    parameters = {entry["name"]: entry for entry in state if entry["role"] == "parameter"}
    gradients = library.values(GRADIENT)
    _compare(where, "gradients", manifest["gradients"], [value["name"] for value in gradients])
    for value in gradients:  # an array for a gradient is made like its parameter
        own = parameters.get(value["name"], {})
        for key in _SAME_TENSOR:
            _compare(where, f"the {key} of the gradient of '{value['name']}'", own.get(key), value[key])
    about, loss = library.about(), manifest["loss"]
    _compare(where, "batch", manifest["batch"], about.batch)
    _compare(where, "lr", float(np.float32(manifest["lr"])), about.lr)
    _compare(where, "loss.classes", loss["classes"], about.classes or None)
    ignored = about.ignored if about.has_ignored else None
    _compare(where, "loss.settings.ignore_index", loss["settings"].get("ignore_index"), ignored)


def _compare_all(
    where: str, kind: str, entries: Sequence[dict[str, Any]], values: Sequence[dict[str, Any]], keys: Sequence[str]
) -> None:
    _compare(where, f"the number of {kind}", len(entries), len(values))
    for index, (entry, value) in enumerate(zip(entries, values, strict=True)):
        for key in keys:
            _compare(where, f"{kind}[{index}].{key}", entry[key], value[key])
        size = math.prod(entry["shape"]) * np.dtype(entry["dtype"]).itemsize
        _compare(where, f"the bytes of {kind}[{index}]", size, value["bytes"])


def _compare(where: str, what: str, here: Any, there: Any) -> None:
    if type(here) is not type(there) or here != there:
        said = f"{quote(here)} and {quote(there)}"
        raise StepError(f"'{where}': the manifest and the library disagree about {what}, {said}; {AGAIN}")
