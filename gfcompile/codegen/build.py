"""Kernels as plain C functions `int k(void *a, void *b, ...)`: what was scheduled, compiled with LLVM into objects."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import compilation_pipeline
from tvm_ffi import StructuralKey

from gfcompile.codegen.arena import Placement
from gfcompile.codegen.forks import count_jobs, share_out
from gfcompile.codegen.inplace import count_outputs, explain_refusal
from gfcompile.codegen.program import Program, read_kernels
from gfcompile.codegen.recipes import digest_of
from gfcompile.codegen.scheduling import Scheduled, Scheduler, kernel_key
from gfcompile.errors import ContractError

PIPELINE = "gf_bare"
CPU_DEVICE = 1
LARGE = 2**16  # bytes of a kernel's object with what is known of its schedule: most have a third of that
DEVICE_CALL = 1  # a calling convention that MakePackedAPI leaves alone
_INTEGERS_BY_MASK = re.compile(r"call void @llvm\.masked\.store\.v\d+i\d+\..*, <\d+ x i1> <([^>]*)>\)")

Counted = Callable[[int, int, str], None]  # told what is done, of how many, and what is next


@dataclass(frozen=True)
class Kernels:
    """`symbol[program][kernel]` is the C name; equal kernels of several programs share one."""

    symbols: dict[str, dict[str, str]]
    objects: list[Path]  # for the linker or, of a GPU's, what the stubs include
    scratch_bytes: int
    stubs: Path | None  # C that stands between the driver and what is not linked


def symbol_of(name: str, scheduled: Scheduled) -> str:
    """A kernel's name in C: by what it does, so that it is the same in every step, and its object with it.

    Its name in the lowered module has numbers that count kernels of its sort; they are left out.
    """
    words = [word.rstrip("0123456789") or word for word in name.split("_")]
    return f"gf_kernel_{'_'.join(words)[:60]}_{scheduled.fingerprint[:12]}"


class KernelBuilder:
    """Collects the kernels of all programs, each distinct one once, and compiles them as they were scheduled."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.symbols: dict[str, dict[str, str]] = {}
        self.functions: dict[str, tirx.PrimFunc] = {}
        self._known: dict[StructuralKey, str] = {}
        self._in_place: dict[str, set[tuple[int, int]]] = {}  # symbol -> (output, input) in one slot

    def add(self, program: Program, placement: Placement) -> None:
        """Take the program's kernels; those already known under another name are shared."""
        names = self.symbols.setdefault(program.name, {})
        for name, function in program.functions.items():
            key = kernel_key(function)
            if key not in self._known:
                self._known[key] = self._new_symbol(name, function)
                self.functions[self._known[key]] = function
            names[name] = self._known[key]
        for call in program.calls:
            if placement.overwrites.keys() & set(call.outputs):
                self._in_place.setdefault(names[call.kernel], set())
            for at, output in enumerate(call.outputs):
                if output in placement.shared:
                    taken = {(at, p) for p, source in enumerate(call.inputs) if source == placement.shared[output]}
                    self._in_place.setdefault(names[call.kernel], set()).update(taken)

    def _new_symbol(self, name: str, function: tirx.PrimFunc) -> str:
        symbol = symbol_of(name, self.scheduler(function))
        if symbol in self.functions:
            namesake = next(name for names in self.symbols.values() for name in names if names[name] == symbol)
            raise ContractError(f"kernels '{namesake}' and '{name}' differ, and both would be '{symbol}' in C")
        return symbol

    def check_in_place(self) -> None:
        """That every kernel may run in place as it is scheduled, where it has to."""
        for symbol, pairs in self._in_place.items():
            found = self.scheduler(self.functions[symbol])
            if not pairs <= found.takeovers:
                check_in_place(symbol, found.function, pairs)

    def build(self, folder: Path, progress: Counted) -> Kernels:
        """One object per kernel keeps LLVM's memory small and progress visible."""
        tasks = self.tasks()
        self.check_in_place()
        compile_tasks(tasks, self.scheduler, folder, progress)
        scratch = max((task.scheduled.workspace.each for task in tasks), default=0)
        return Kernels(self.symbols, [task.place(folder) for task in tasks], scratch, None)

    def tasks(self) -> list[Task]:
        """What there is to compile."""
        return [
            Task(symbol, self.scheduler(function), symbol not in self._in_place)
            for symbol, function in self.functions.items()
        ]


@dataclass(frozen=True)
class Task:
    """A kernel to compile. `noalias` promises that no operand lies on another."""

    symbol: str
    scheduled: Scheduled
    noalias: bool = True

    @classmethod
    def of(cls, name: str, scheduled: Scheduled) -> Task:
        """For the kernel of this name, of which no operand lies on another."""
        return cls(symbol_of(name, scheduled), scheduled)

    @property
    def key(self) -> str:
        """In the store."""
        return digest_of(self.scheduled.recipe, self.symbol, str(self.noalias))

    def place(self, folder: Path) -> Path:
        """Its object."""
        return folder / f"{self.symbol}.o"


def compile_ahead(modules: Iterable[tvm.IRModule], scheduler: Scheduler, progress: Counted) -> None:
    """Schedule and compile, on all cores and into the store, what it has not of the kernels of lowered modules.

    What may write over an operand is only scheduled here: whether it will is decided by the places of tensors, which
    need the schedules of all. Where the store cannot be written, nothing that is made here would be found again.
    """
    store = scheduler.store
    if count_jobs() < 2 or scheduler.target.kind == "cuda":
        return
    found: dict[StructuralKey, tuple[str, tirx.PrimFunc]] = {}
    for module in modules:
        for name, function in read_kernels(module).items():
            found.setdefault(kernel_key(function), (name, function))
    if store.limit < LARGE * len(found):  # it would lose the first while the last are made
        return

    def is_there(kernel: tuple[str, tirx.PrimFunc]) -> bool:
        name, function = kernel
        if not scheduler.knows(function):
            return False
        scheduled = scheduler(function)
        return bool(scheduled.takeovers) or store.holds(Task.of(name, scheduled).key)

    def make(number: int) -> None:
        name, function = missing[number]
        if store.is_open:
            if os.getpid() == here:
                progress(len(found) - len(missing) + number, len(found), name)
            scheduled = scheduler(function)
            if not scheduled.takeovers:
                make_object(Task.of(name, scheduled), scheduler)
        done[number] = 1

    here, missing = os.getpid(), [kernel for kernel in found.values() if not is_there(kernel)]
    with mmap(-1, len(missing) + 1) as done:  # shared with copies; a small store may have lost what was made
        share_out(len(missing), make, lambda number: done[number] == 1)


def compile_tasks(tasks: Sequence[Task], scheduler: Scheduler, folder: Path, progress: Counted) -> None:
    """An object each in the folder: taken from the store, or compiled on all cores and kept there."""

    def make(task: Task) -> None:
        being_written = folder / f"{task.symbol}.{os.getpid()}"
        being_written.write_bytes(make_object(task, scheduler))
        being_written.rename(task.place(folder))

    def is_made(number: int) -> bool:
        return missing[number].place(folder).exists()

    def make_numbered(number: int) -> None:
        if os.getpid() == here:
            made = sum(map(is_made, range(len(missing))))
            progress(len(tasks) - len(missing) + made, len(tasks), missing[number].symbol)
        make(missing[number])

    here, missing = os.getpid(), []
    for task in tasks:
        if scheduler.store.holds(task.key):
            make(task)
        else:
            missing.append(task)
    share_out(len(missing), make_numbered, is_made)
    progress(len(tasks), len(tasks), "")


def make_object(task: Task, scheduler: Scheduler) -> bytes:
    """From the store, or compiled and kept there."""
    kept = scheduler.store.read(task.key)
    if kept is None:
        target = tvm.target.Target(scheduler.target.tvm)
        kept = compile_kernel(task.scheduled.function, task.symbol, target, task.noalias)
        scheduler.store.write(task.key, kept)
    return kept


def compile_kernel(scheduled: tirx.PrimFunc, symbol: str, target: tvm.target.Target, noalias: bool) -> bytes:
    """The object, which defines the C function `symbol`; `noalias` promises that no operand lies on another.

    A caller's PassContext would change it, and is no part of its key in the store.
    """
    with tvm.transform.PassContext():
        module = tvm.IRModule({symbol: _bare(scheduled, symbol, noalias)})
        built = tirx.build(module, target, pipeline=PIPELINE)
        if stores_one_lane(built.inspect_source("ll")):
            built = tirx.build(module, _without_loop_vectors(target), pipeline=PIPELINE)
        return object_of(built)


def stores_one_lane(ir: str) -> bool:
    """Whether LLVM IR stores one lane of a vector of integers, known in advance, and leaves the others in memory.

    LLVM 22.1.0 gets this wrong for AVX-512 (llvm/llvm-project#179489): where the integers were narrowed just before,
    it stores the lane as wide as it was, up to 7 bytes past its place. Masks of several lanes are right.
    """
    return any(mask.count("true") == 1 for mask in _INTEGERS_BY_MASK.findall(ir))


def _without_loop_vectors(target: tvm.target.Target) -> tvm.target.Target:
    """LLVM's loop vectoriser alone makes masked stores: of the end of a short row. A schedule's own vectors stay."""
    return tvm.target.Target({**target.export(), "cl-opt": ["-vectorize-loops:bool=false"]})


def object_of(module: tvm.runtime.Module) -> bytes:
    """Through memory: LLVM ends the whole process where a file cannot be written, as on a full disk."""
    with os.fdopen(os.memfd_create("object"), "rb") as memory:
        module.write_to_file(f"/proc/self/fd/{memory.fileno()}", "o")
        return memory.read()


def check_in_place(symbol: str, scheduled: tirx.PrimFunc, pairs: set[tuple[int, int]]) -> None:
    """What was promised of the kernel must hold of its schedule too: a rule may have moved a read."""
    inputs = len(scheduled.params) - count_outputs(scheduled)
    for output, source in sorted(pairs):
        reason = explain_refusal(scheduled, inputs + output, source)
        if reason is not None:
            raise ContractError(f"kernel '{symbol}' cannot run in place as it is scheduled: {reason}")


def _bare(function: tirx.PrimFunc, symbol: str, noalias: bool) -> tirx.PrimFunc:
    """Buffer parameters become raw pointers, so that no packed calling convention is needed."""
    parameters, declarations = [], []
    for parameter in function.params:
        if isinstance(parameter.ty, tirx.buffer.BufferType):
            pointer = tirx.Var(f"{parameter.name}_pointer", PointerType(PrimType(parameter.dtype)))
            parameters.append(pointer)
            declarations.append(tirx.DeclBuffer(parameter, data=pointer))
        else:
            parameters.append(parameter)
    body = tirx.SeqStmt([*declarations, function.body])
    bare = tirx.PrimFunc(parameters, body, ret_type=function.ret_type, attrs=function.attrs)
    bare = bare.with_attr("global_symbol", symbol).with_attr("calling_conv", DEVICE_CALL)
    return bare.with_attr("tirx.noalias", noalias)


@tirx.transform.prim_func_pass(opt_level=0)
def _on_cpu(function: tirx.PrimFunc, _module: tvm.IRModule, _context: tvm.transform.PassContext) -> tirx.PrimFunc:
    """What MakePackedAPI would add: the device of workspaces and parallel loops, and a zero return for success."""
    body = tirx.AttrStmt("default", "device_type", tirx.IntImm("int32", CPU_DEVICE), function.body)
    body = tirx.AttrStmt("default", "device_id", tirx.IntImm("int32", 0), body)
    body = tirx.SeqStmt([body, tirx.Return(tirx.IntImm("int32", 0))])
    return tirx.PrimFunc(function.params, body, ret_type=PrimType("int32"), attrs=function.attrs)


def _bare_pipeline() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    start, host, device = compilation_pipeline.get_tir_pipeline("default")
    return tvm.transform.Sequential([start, _on_cpu]), host, device


compilation_pipeline.register_tir_pipeline(PIPELINE, _bare_pipeline)
