"""Every distinct kernel scheduled once for a target, before anything is compiled: what it needs beside its operands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from tvm import tirx
from tvm_ffi import StructuralKey

from gfcompile.codegen.cuda.launches import cut
from gfcompile.codegen.inplace import find_takeovers
from gfcompile.codegen.recipes import canonical, decisions_text, digest_of, machine_digest
from gfcompile.codegen.schedules import Workspace, find_workspace, follow, schedule
from gfcompile.codegen.store import NO_STORE, Store
from gfcompile.codegen.tuned.database import NOTHING_KNOWN, Databases
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.targets import Target


@dataclass
class Scheduled:
    """A kernel as it will be compiled. `takeovers` are the (output, input) positions that may share memory.

    Its loops are made when they are first asked for: all that a program's order and places need may be known without.
    """

    workspace: Workspace
    takeovers: frozenset[tuple[int, int]]
    tuned: Record | None  # the trial whose decisions it follows
    fingerprint: str  # of the kernel, unscheduled
    recipe: str  # of all that its code is made from, its name and its promises about memory aside
    make: Callable[[], tirx.PrimFunc] = field(repr=False)

    @cached_property
    def function(self) -> tirx.PrimFunc:
        """With its loops."""
        return self.make()


@dataclass(frozen=True)
class _Asked:
    """A kernel that a schedule is wanted for, under its canonical names, and what it will be made from."""

    function: tirx.PrimFunc
    record: Record | None
    mark: str
    recipe: str

    @property
    def facts(self) -> str:
        """Their key in the store."""
        return digest_of(self.recipe, "schedule")


class Scheduler:
    """Schedules for one target; equal kernels of several programs are scheduled once.

    Where `tuning` knows decisions that were measured to be faster, these are followed. What the store knows of a
    schedule is not found out again.
    """

    def __init__(self, target: Target, tuning: Databases = NOTHING_KNOWN, store: Store = NO_STORE) -> None:
        self.target, self.tuning, self.store = target, tuning, store
        self._key = target_key(target)
        self._known: dict[StructuralKey, Scheduled] = {}

    def __call__(self, function: tirx.PrimFunc) -> Scheduled:
        key = kernel_key(function)
        if key not in self._known:
            asked = self._ask(function)
            self._known[key] = self._read(asked) or self._schedule(asked)
        return self._known[key]

    def knows(self, function: tirx.PrimFunc) -> bool:
        """Whether it has no schedule to make: it was asked for before, here or in another process."""
        key = kernel_key(function)
        if key not in self._known:
            found = self._read(self._ask(function))
            if found is None:
                return False
            self._known[key] = found
        return True

    def _ask(self, function: tirx.PrimFunc) -> _Asked:
        record = self.tuning.best(kernel_hash(function), self._key)
        function, mark = canonical(function)
        recipe = digest_of(mark, machine_digest(self.target), "" if record is None else decisions_text(record))
        return _Asked(function, record, mark, recipe)

    def _read(self, asked: _Asked) -> Scheduled | None:
        kept = self.store.read(asked.facts)
        if kept is None:
            return None
        facts = json.loads(kept)
        tuned = asked.record if facts["follows"] else None
        return Scheduled(
            Workspace(facts["shared"], facts["each"]),
            frozenset((output, source) for output, source in facts["takeovers"]),
            tuned,
            asked.mark,
            asked.recipe,
            lambda: self._apply(asked.function, tuned)[0],
        )

    def _schedule(self, asked: _Asked) -> Scheduled:
        scheduled, tuned = self._apply(asked.function, asked.record)
        takeovers = find_takeovers(asked.function) & find_takeovers(scheduled)  # a schedule may have moved a read
        on_gpu = self.target.kind == "cuda"
        workspace = Workspace(cut(scheduled).workspace, 0) if on_gpu else find_workspace(scheduled)
        facts = {
            "shared": workspace.shared,
            "each": workspace.each,
            "takeovers": sorted(takeovers),
            "follows": tuned is not None,
        }
        self.store.write(asked.facts, json.dumps(facts).encode())
        return Scheduled(workspace, takeovers, tuned, asked.mark, asked.recipe, lambda: scheduled)

    def _apply(self, function: tirx.PrimFunc, record: Record | None) -> tuple[tirx.PrimFunc, Record | None]:
        if record is not None:
            scheduled = follow(record.template, record.decisions, function, self.target)
            if scheduled is not None:
                return scheduled, record
        return schedule(function, self.target), None


def kernel_key(function: tirx.PrimFunc) -> StructuralKey:
    """Equal for kernels that do the same, whatever their names."""
    return StructuralKey(function.without_attr("global_symbol"))
