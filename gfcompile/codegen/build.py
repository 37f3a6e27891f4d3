"""Kernels as plain C functions `int k(void *a, void *b, ...)`: schedule, compile with LLVM, write objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.tirx import compilation_pipeline
from tvm_ffi import StructuralKey

from gfcompile.codegen.program import IN_PLACE, Program
from gfcompile.codegen.schedules import schedule, workspace_bytes
from gfcompile.targets import Target

PIPELINE = "gf_bare"
CPU_DEVICE = 1
DEVICE_CALL = 1  # a calling convention that MakePackedAPI leaves alone


@dataclass(frozen=True)
class Kernels:
    """`symbol[program][kernel]` is the C name; equal kernels of several programs share one."""

    symbols: dict[str, dict[str, str]]
    objects: list[Path]
    scratch_bytes: int


class KernelBuilder:
    """Collects the kernels of all programs, each distinct one once, and compiles them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.symbols: dict[str, dict[str, str]] = {}
        self.functions: dict[str, tirx.PrimFunc] = {}
        self._known: dict[StructuralKey, str] = {}

    def add(self, program: Program) -> None:
        """Take the program's kernels; those already known under another name are shared."""
        names = self.symbols.setdefault(program.name, {})
        for name, function in program.functions.items():
            plain = function.without_attr("global_symbol")
            key = StructuralKey(plain)
            if key not in self._known:
                self._known[key] = f"gf_kernel_{len(self.functions)}_{name[:60]}"
                self.functions[self._known[key]] = function
            names[name] = self._known[key]

    def build(self, folder: Path, progress: Callable[[int, int, str], None]) -> Kernels:
        """Schedule and compile; one object a kernel keeps LLVM's memory small and progress visible."""
        scratch = 0
        objects = []
        target = tvm.target.Target(self.target.tvm)
        for index, (symbol, function) in enumerate(self.functions.items()):
            progress(index, len(self.functions), symbol)
            scheduled = schedule(function, self.target)
            scratch = max(scratch, workspace_bytes(scheduled))
            in_place = _base(symbol) in IN_PLACE
            module = tvm.IRModule({symbol: _bare(scheduled, symbol, noalias=not in_place)})
            path = folder / f"{symbol}.o"
            tirx.build(module, target, pipeline=PIPELINE).write_to_file(str(path), "o")
            objects.append(path)
        progress(len(self.functions), len(self.functions), "")
        return Kernels(self.symbols, objects, scratch)


def _base(symbol: str) -> str:
    return symbol.split("_", 3)[3].rstrip("0123456789")


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
