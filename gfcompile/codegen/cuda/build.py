"""All kernels of a step as one CUDA module, and the C that launches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gfcompile.codegen.build import KernelBuilder, Kernels, check_in_place
from gfcompile.codegen.cuda.launches import cut, make_source
from gfcompile.codegen.cuda.nvrtc import compile_ptx
from gfcompile.codegen.cuda.ptxas import Usage, assemble, make_usages
from gfcompile.codegen.cuda.stubs import Image, Stub, write_stubs
from gfcompile.errors import ContractError


@dataclass(frozen=True)
class CudaKernels(Kernels):
    """`source` is CUDA C, for people and for the emulator; `usages` what ptxas counted, in the order of launches."""

    source: str
    usages: list[Usage]


class CudaKernelBuilder(KernelBuilder):
    """Collects as for a CPU; compiles everything at once, for NVRTC takes longest to read its own headers."""

    def build(self, folder: Path, progress: Callable[[int, int, str], None]) -> CudaKernels:
        target = self.scheduler.target
        if target.gpu is None:
            raise ContractError(f"target '{target.name}' has no GPU")
        total, arch = len(self.functions), target.gpu.arch
        progress(0, total, f"as CUDA C for {arch}")
        scheduled = {symbol: self.scheduler(function).function for symbol, function in self.functions.items()}
        for symbol, function in scheduled.items():
            check_in_place(symbol, function, self._in_place.get(symbol, set()))
        source, launches = make_source(
            {symbol: (function, symbol not in self._in_place) for symbol, function in scheduled.items()}, target
        )
        progress(0, total, f"by NVRTC for {arch}")
        ptx, cubin = folder / "kernels.ptx", folder / "kernels.cubin"
        ptx.write_text(compile_ptx(source, arch))
        progress(total, total, f"by ptxas for {arch}")
        counted = assemble(ptx, cubin, arch)
        stubs = {}
        for symbol, function in scheduled.items():
            nests = cut(function)
            stubs[symbol] = Stub(launches[symbol], nests.parameters, nests.offsets)
        capability = target.gpu.capability
        images = [Image(cubin, capability, is_ptx=False), Image(ptx, capability, is_ptx=True)]
        stub_file = folder / "launches.c"
        stub_file.write_text(write_stubs(stubs, images))
        usages = make_usages(counted, [launch for stub in stubs.values() for launch in stub.launches], target.gpu)
        return CudaKernels(self.symbols, [cubin, ptx], 0, stub_file, source, usages)
