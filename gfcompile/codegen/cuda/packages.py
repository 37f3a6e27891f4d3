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


def find(file: str) -> Path:
    """The installed file of this name, one of those above."""
    package = _PACKAGES[file]
    try:
        found = [entry for entry in files(package) or () if f"/{entry}".endswith(f"/{file}")]
    except PackageNotFoundError as error:
        raise UserError(f"CUDA targets need '{package}', which is not installed; {_REMEDY}") from error
    path = Path(str(found[0].locate())) if found else None
    if path is None or not path.is_file():
        raise UserError(f"CUDA targets need '{file}' of '{package}', which is not there; {_REMEDY}")
    return path


def find_headers() -> list[Path]:
    """The folders that the CUDA C of TVM includes from."""
    return [find("cuda_runtime.h").parent, find("cuda/std/cstdint").parent.parent.parent]
