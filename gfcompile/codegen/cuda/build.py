"""All kernels of a step as one CUDA module, and the C that launches them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gfcompile.codegen.build import KernelBuilder, Kernels
from gfcompile.codegen.cuda.module import compile_module
from gfcompile.codegen.cuda.ptxas import Usage
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
        self.check_in_place()
        functions = {symbol: (function, symbol not in self._in_place) for symbol, function in scheduled.items()}
        made = compile_module(functions, target, folder, lambda words: progress(0, total, words))
        progress(total, total, "")
        usages = [usage for each in made.usages.values() for usage in each]
        return CudaKernels(self.symbols, made.images, 0, made.stubs, made.source, usages)
