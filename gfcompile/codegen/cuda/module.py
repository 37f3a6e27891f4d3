"""Scheduled functions as one CUDA module, and the C that launches them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tvm import tirx

from gfcompile.codegen.cuda.launches import Nests, cut, make_source
from gfcompile.codegen.cuda.nvrtc import compile_ptx
from gfcompile.codegen.cuda.ptxas import Usage, assemble, make_usages
from gfcompile.codegen.cuda.stubs import Image, Stub, write_stubs
from gfcompile.errors import ContractError
from gfcompile.progress import Progress, silent
from gfcompile.targets import Target


@dataclass(frozen=True)
class CudaModule:
    """`stubs` is C that includes the `images`; `nests` and `usages` are by function."""

    source: str
    images: list[Path]
    stubs: Path
    nests: dict[str, Nests]
    usages: dict[str, list[Usage]]


def compile_module(
    functions: Mapping[str, tuple[tirx.PrimFunc, bool]],
    target: Target,
    folder: Path,
    progress: Progress = silent,
) -> CudaModule:
    """All at once, for NVRTC takes longest to read its own headers. With its flag set, no two arguments share memory.

    A ContractError where NVRTC or ptxas refuses one, or the GPU would.
    """
    gpu = target.gpu
    if gpu is None:
        raise ContractError(f"target '{target.name}' has no GPU")
    source, launches = make_source(functions, target)
    progress(f"by NVRTC for {gpu.arch}")
    ptx, cubin = folder / "kernels.ptx", folder / "kernels.cubin"
    ptx.write_text(compile_ptx(source, gpu.arch))
    progress(f"by ptxas for {gpu.arch}")
    counted = assemble(ptx, cubin, gpu.arch)
    nests = {symbol: cut(function) for symbol, (function, _) in functions.items()}
    stubs = {symbol: Stub(launches[symbol], each.parameters, each.offsets) for symbol, each in nests.items()}
    images = [Image(cubin, gpu.capability, is_ptx=False), Image(ptx, gpu.capability, is_ptx=True)]
    stub_file = folder / "launches.c"
    stub_file.write_text(write_stubs(stubs, images))
    usages = {symbol: make_usages(counted, launches[symbol], gpu) for symbol in functions}
    return CudaModule(source, [cubin, ptx], stub_file, nests, usages)
