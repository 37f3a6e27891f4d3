"""Every distinct kernel scheduled once for a target, before anything is compiled: what it needs beside its operands."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm_ffi import StructuralKey

from gfcompile.codegen.cuda.launches import cut
from gfcompile.codegen.inplace import find_takeovers
from gfcompile.codegen.schedules import Workspace, find_workspace, schedule
from gfcompile.targets import Target


@dataclass(frozen=True)
class Scheduled:
    """A kernel as it will be compiled. `takeovers` are the (output, input) positions that may share memory."""

    function: tirx.PrimFunc
    workspace: Workspace
    takeovers: frozenset[tuple[int, int]]


class Scheduler:
    """Schedules for one target; equal kernels of several programs are scheduled once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._known: dict[StructuralKey, Scheduled] = {}

    def __call__(self, function: tirx.PrimFunc) -> Scheduled:
        key = kernel_key(function)
        if key not in self._known:
            scheduled = schedule(function, self.target)
            takeovers = find_takeovers(function) & find_takeovers(scheduled)  # a schedule may have moved a read
            on_gpu = self.target.kind == "cuda"
            workspace = Workspace(cut(scheduled).workspace, 0) if on_gpu else find_workspace(scheduled)
            self._known[key] = Scheduled(scheduled, workspace, takeovers)
        return self._known[key]


def kernel_key(function: tirx.PrimFunc) -> StructuralKey:
    """Equal for kernels that do the same, whatever their names."""
    return StructuralKey(function.without_attr("global_symbol"))
