"""What a user may give as a model: asked before anything is loaded, so it imports little."""

from __future__ import annotations

from pathlib import Path

from gfcompile.errors import UserError

SUFFIXES = (".pt", ".pth", ".pt2", ".onnx")


def check_spec(spec: str) -> str | None:
    """The suffix of a model's file, which is there; None for `package.module:factory`."""
    suffix = Path(spec).suffix.lower()
    if suffix == ".safetensors":
        raise UserError(f"{spec}: '.safetensors' holds weights only; use package.module:factory --weights {spec}")
    if suffix in SUFFIXES:
        if not Path(spec).is_file():
            raise UserError(f"{spec}: no such file; check the path")
        return suffix
    if ":" not in spec:
        raise UserError(
            f"model: '{spec}' is not a model; give a .pt2, .onnx, .pt or .pth file, or package.module:factory"
        )
    return None
