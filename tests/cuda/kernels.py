"""Kernels as the compiler schedules them for a GPU, run one by one in the emulator, against TVM's plain loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from gfcompile.codegen.cuda.launches import Launch, Nests, cut, make_source
from gfcompile.codegen.schedules import choose_schedule
from gfcompile.targets import Target
from tests.cuda.emulator import build, launch


class Emulated:
    """Functions scheduled for a target, compiled for the emulator with all its checks."""

    def __init__(
        self,
        functions: Mapping[str, tirx.PrimFunc],
        target: Target,
        folder: Path,
        schedule: Callable[[tirx.PrimFunc, Target], tuple[str, tirx.PrimFunc]] = choose_schedule,
    ) -> None:
        chosen = {name: schedule(function, target) for name, function in functions.items()}
        self.rules = {name: rule for name, (rule, _) in chosen.items()}
        self.nests: dict[str, Nests] = {name: cut(scheduled) for name, (_, scheduled) in chosen.items()}
        scheduled = {name: (function, True) for name, (_, function) in chosen.items()}
        self.source, self.launches = make_source(scheduled, target)
        extents = {
            each.kernel: [_bytes(self.nests[name].buffers[at]) for at in each.arguments]
            for name, launches in self.launches.items()
            for each in launches
        }
        self.library = build(self.source, folder / "kernels.so", race_check=True, extents=extents)

    def run(self, name: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """The function's parameters after it: inputs as given, outputs and intermediates from garbage."""
        nests = self.nests[name]
        arrays = [array.copy() for array in inputs]
        arrays += [np.full(_shape(buffer), _garbage(buffer), buffer.dtype) for buffer in nests.buffers[len(inputs) :]]
        for each in self.launches[name]:
            self.launch(each, arrays)
        return arrays[: nests.parameters]

    def launch(self, each: Launch, arrays: list[np.ndarray]) -> None:
        launch(self.library, each.kernel, each.grid, each.block, [arrays[at] for at in each.arguments])


class Plain:
    """The same functions on the CPU, unscheduled."""

    def __init__(self, functions: Mapping[str, tirx.PrimFunc]) -> None:
        self.functions = functions
        named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
        self.built = tvm.compile(tvm.IRModule(named), target="llvm")

    def run(self, name: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs = [np.zeros(_shape(buffer), buffer.dtype) for buffer in self.functions[name].params[len(inputs) :]]
        tensors = [tvm.runtime.tensor(array) for array in (*inputs, *outputs)]
        self.built[name](*tensors)
        return [tensor.numpy() for tensor in tensors]


def random_inputs(function: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """One array for each parameter that the function does not write; whole numbers are 0 or 1, as good as indices."""
    rng = np.random.default_rng(seed)
    inputs = []
    for buffer in function.params[: -_count_outputs(function)]:
        shape = _shape(buffer)
        if buffer.dtype.startswith("float"):
            inputs.append(rng.standard_normal(shape).astype(buffer.dtype))
        else:
            inputs.append(rng.integers(0, 2, shape).astype(buffer.dtype))
    return [np.asarray(array) for array in inputs]


def _count_outputs(function: tirx.PrimFunc) -> int:
    written: list[tirx.BufferStore] = []
    structural_walk(function.body, [(tirx.BufferStore, written.append)])
    return sum(any(store.buffer.same_as(buffer) for store in written) for buffer in function.params)


def _shape(buffer: tirx.Var) -> tuple[int, ...]:
    return tuple(int(size) for size in buffer.shape)


def _bytes(buffer: tirx.Var) -> int:
    return prod(_shape(buffer)) * ((tvm.runtime.DataType(buffer.dtype).bits + 7) // 8)


def _garbage(buffer: tirx.Var) -> float:
    return np.nan if buffer.dtype.startswith("float") else 1
