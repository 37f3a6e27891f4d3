"""Where pip put NVIDIA's compilers: the extra `gfcompile[cuda]`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from gfcompile.errors import UserError

_PACKAGES = {
    "libnvrtc.so.12": "nvidia-cuda-nvrtc-cu12",
    "ptxas": "nvidia-cuda-nvcc-cu12",
    "cuda_runtime.h": "nvidia-cuda-runtime-cu12",
    "cuda/std/cstdint": "nvidia-cuda-cccl-cu12",
}
_REMEDY = "pip install 'gfcompile[cuda]'"


def find_missing() -> str | None:
    """What to install before anything can be compiled for a GPU; None if it is there."""
    return None if all(_locate(file) for file in _PACKAGES) else _REMEDY


def find(file: str) -> Path:
    """The installed file of this name, one of those above."""
    path = _locate(file)
    if path is None:
        raise UserError(f"CUDA targets need '{file}' of '{_PACKAGES[file]}', which is not installed; {_REMEDY}")
    return path


def _locate(file: str) -> Path | None:
    try:
        found = [entry for entry in files(_PACKAGES[file]) or () if f"/{entry}".endswith(f"/{file}")]
    except PackageNotFoundError:
        return None
    path = Path(str(found[0].locate())) if found else None
    return path if path is not None and path.is_file() else None


def find_headers() -> list[Path]:
    """The folders that the CUDA C of TVM includes from."""
    return [find("cuda_runtime.h").parent, find("cuda/std/cstdint").parent.parent.parent]
