"""A scheduled function as launches: one for each loop nest under its root."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.tirx.build import split_host_device_mods
from tvm_ffi import structural_map, structural_walk

from gfcompile.errors import ContractError
from gfcompile.targets import Target

_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_BLOCK = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)  # along x, y and z, on every GPU
_MOST_THREADS = 1024
_WHOLE_WARP = "0xffffffffu"
_ALIGNMENT = 64
_PARAMETER, _ITS_DATA = "p", "_ptr"  # TVM calls the pointer of buffer p3 p3_ptr
# loops stay loops with a pragma: unrolled by TVM, the source of one kernel would be thousands of lines
_CONFIG = {"tirx.UnrollLoop": {"explicit_unroll": False}}


@dataclass(frozen=True)
class Launch:
    """One kernel on one grid. `arguments` are positions: the function's parameters, then its intermediates."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Nests:
    """A function cut at its root: `parts` with one thread-bound nest each, all over the same `buffers`.

    `buffers` are the function's parameters and, after them, the intermediates in global memory that its parts hand
    to each other; these lie at `offsets` of a workspace.
    """

    parts: list[tirx.PrimFunc]
    buffers: list[tirx.Var]
    offsets: tuple[int, ...]
    workspace: int

    @property
    def parameters(self) -> int:
        """How many of the buffers are the function's parameters."""
        return len(self.buffers) - len(self.offsets)


def cut(function: tirx.PrimFunc) -> Nests:
    """Each nest under the root block as a function of its own."""
    realize = function.body
    if not isinstance(realize, SBlockRealize):
        raise ContractError("a kernel for a GPU has no root block")
    root = realize.block
    shared = [buffer for buffer in root.alloc_buffers if buffer.scope() == "global"]
    own = [buffer for buffer in root.alloc_buffers if buffer.scope() != "global"]
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    buffers = [*function.params, *shared]
    parts: list[tirx.PrimFunc] = []
    taken: list[tirx.Var] = []
    for nest in nests:
        used = _buffers_in(nest)
        local = [buffer for buffer in own if _is_among(buffer, used)]
        for buffer in local:
            if _is_among(buffer, taken):
                raise ContractError(f"'{buffer.name}' ({buffer.scope()} memory) lives through two launches")
        taken += local
        block = SBlock([], [], [], "root", nest, alloc_buffers=local)
        parts.append(tirx.PrimFunc(buffers, SBlockRealize([], True, block), attrs=function.attrs))
    *offsets, workspace = accumulate(map(_slot_bytes, shared), initial=0)
    return Nests(parts, buffers, tuple(offsets), workspace)


def _slot_bytes(buffer: tirx.Var) -> int:
    size = prod(map(int, buffer.shape)) * ((tvm.runtime.DataType(buffer.dtype).bits + 7) // 8)
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def make_source(
    functions: Mapping[str, tuple[tirx.PrimFunc, bool]], target: Target
) -> tuple[str, dict[str, list[Launch]]]:
    """The CUDA C of all functions, and the launches of each. With its flag set, no two arguments share memory."""
    gpu = device_target(target)
    module: dict[str, tirx.PrimFunc] = {}
    for symbol, (function, noalias) in functions.items():
        for number, part in enumerate(cut(function).parts):
            name = f"{symbol}_{number}"
            module[name] = _numbered(part, name, noalias)
    with tvm.transform.PassContext(config=_CONFIG):
        bound = tirx.transform.BindTarget(gpu)(tvm.IRModule(module))
        start, _, finish = tirx.get_tir_pipeline("default")
        ((found, device),) = split_host_device_mods(start(bound))[1].items()
        device = finish()(device)
        source = _with_whole_masks(tvm.get_global_func("target.build.cuda")(device, found).inspect_source())
    kernels = {str(function.attrs["global_symbol"]): function for function in device.functions.values()}
    launches: dict[str, list[Launch]] = {symbol: [] for symbol in functions}
    for name in module:
        launch = _read_launch(f"{name}_kernel", kernels)
        launches[name.rpartition("_")[0]].append(launch)
    return source, launches


def _with_whole_masks(source: str) -> str:
    """Shuffles wait for all lanes of their warp, by their masks.

    TVM's preamble takes the mask off below sm_70; PTX without it would not run on anything later. Its kernels ask for
    `__activemask()` after branches, where from sm_70 on it may miss lanes that are on their way: a sum would lack
    their parts. Schedules let whole warps sum together, so the mask is known.
    """
    kept = re.sub(r"#if defined\(__CUDA_ARCH__\) && \(__CUDA_ARCH__ < 700\)\n.*?#endif\n", "", source, flags=re.DOTALL)
    return kept.replace("__activemask()", _WHOLE_WARP)


def device_target(target: Target) -> tvm.target.Target:
    """The GPU as TVM describes one, with its host."""
    gpu = target.gpu
    if gpu is None:
        raise ContractError(f"target '{target.name}' has no GPU")
    device = {
        "kind": "cuda",
        "arch": gpu.arch,
        "max_threads_per_block": _MOST_THREADS,
        "max_shared_memory_per_block": gpu.shared_bytes_per_block,
        "thread_warp_size": gpu.warp,
    }
    return tvm.target.Target(device, host=tvm.target.Target(dict(target.tvm)))


def _numbered(function: tirx.PrimFunc, symbol: str, noalias: bool) -> tirx.PrimFunc:
    """Parameters whose names tell their positions: TVM orders a kernel's by name."""
    numbered = [tirx.Var(f"{_PARAMETER}{position}", buffer.ty) for position, buffer in enumerate(function.params)]

    def rename(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in zip(function.params, numbered, strict=True) if var.same_as(old)), var)

    body = structural_map(function.body, (tirx.Var, rename), order="post")
    renamed = tirx.PrimFunc(numbered, body, ret_type=function.ret_type, attrs=function.attrs)
    return renamed.with_attr("global_symbol", symbol).with_attr("tirx.noalias", noalias)


def _read_launch(kernel: str, kernels: Mapping[str, tirx.PrimFunc]) -> Launch:
    if kernel not in kernels:
        raise ContractError(f"'{kernel}': its schedule binds no thread")
    function = kernels[kernel]
    extents: dict[str, int] = {}

    def note(statement: tirx.AttrStmt) -> None:
        if statement.attr_key == "thread_extent":
            extents[str(statement.node.thread_tag)] = int(statement.value)

    structural_walk(function.body, [(tirx.AttrStmt, note)])
    names = [str(parameter.name) for parameter in function.params]
    positions = [int(name.removeprefix(_PARAMETER).removesuffix(_ITS_DATA)) for name in names]
    launch = Launch(kernel, _extents(extents, _GRID), _extents(extents, _BLOCK), tuple(positions))
    _check_limits(launch)
    return launch


def _check_limits(launch: Launch) -> None:
    """What the driver would refuse when the step runs; a negative number is one that 32 bits could not hold."""
    fits = all(0 < size <= most for size, most in zip(launch.grid, _MOST_BLOCKS, strict=True))
    if not fits or prod(launch.block) > _MOST_THREADS:
        raise ContractError(f"'{launch.kernel}': no GPU takes {launch.grid} blocks of {launch.block} threads")


def _extents(found: Mapping[str, int], tags: Sequence[str]) -> tuple[int, int, int]:
    x, y, z = (found.get(tag, 1) for tag in tags)
    return x, y, z


def _is_among(buffer: tirx.Var, others: Sequence[tirx.Var]) -> bool:
    return any(buffer.same_as(other) for other in others)


def _buffers_in(nest: Any) -> list[tirx.Var]:
    blocks: list[SBlock] = []
    structural_walk(nest, [(SBlock, blocks.append)])
    return [region.source for block in blocks for region in (*block.reads, *block.writes)]
