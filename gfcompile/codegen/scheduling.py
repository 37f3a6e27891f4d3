"""Every distinct kernel scheduled once for a target, before anything is compiled: what it needs beside its operands."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm_ffi import StructuralKey

from gfcompile.codegen.cuda.launches import cut
from gfcompile.codegen.inplace import find_takeovers
from gfcompile.codegen.schedules import Workspace, find_workspace, follow, schedule
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.targets import Target


@dataclass(frozen=True)
class Scheduled:
    """A kernel as it will be compiled. `takeovers` are the (output, input) positions that may share memory."""

    function: tirx.PrimFunc
    workspace: Workspace
    takeovers: frozenset[tuple[int, int]]
    tuned: Record | None = None  # the trial whose decisions it follows


class Scheduler:
    """Schedules for one target; equal kernels of several programs are scheduled once.

    Where `tuning` knows decisions that were measured to be faster, these are followed.
    """

    def __init__(self, target: Target, tuning: Databases = NOTHING_KNOWN) -> None:
        self.target, self.tuning = target, tuning
        self._key = target_key(target)
        self._known: dict[StructuralKey, Scheduled] = {}

    def __call__(self, function: tirx.PrimFunc) -> Scheduled:
        key = kernel_key(function)
        if key not in self._known:
            scheduled, tuned = self._schedule(function)
            takeovers = find_takeovers(function) & find_takeovers(scheduled)  # a schedule may have moved a read
            on_gpu = self.target.kind == "cuda"
            workspace = Workspace(cut(scheduled).workspace, 0) if on_gpu else find_workspace(scheduled)
            self._known[key] = Scheduled(scheduled, workspace, takeovers, tuned)
        return self._known[key]

    def _schedule(self, function: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Record | None]:
        record = self.tuning.best(kernel_hash(function), self._key)
        if record is not None:
            scheduled = follow(record.template, record.decisions, function, self.target)
            if scheduled is not None:
                return scheduled, record
        return schedule(function, self.target), None


def kernel_key(function: tirx.PrimFunc) -> StructuralKey:
    """Equal for kernels that do the same, whatever their names."""
    return StructuralKey(function.without_attr("global_symbol"))
