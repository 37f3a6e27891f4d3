"""A trial: a candidate for a kernel and the kernel as it is untuned, in one program that compares and times the two.

Both are linked with the runtime's own thread pool, or launched by its own launcher, so that what is timed is what runs
in a step.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import tvm
from tvm import tirx
from tvm_ffi import structural_walk

from gfcompile.codegen.build import compile_kernel
from gfcompile.codegen.cuda.module import compile_module
from gfcompile.codegen.kernels.open_convolution import WEIGHTS
from gfcompile.codegen.link import RUNTIME, ZIG, link_executable, link_shared
from gfcompile.codegen.schedules import Workspace, find_workspace
from gfcompile.errors import ContractError
from gfcompile.targets import Target

Kind = Literal["program", "library"]
NAMES: dict[Kind, str] = {"program": "trial", "library": "trial.so"}
Role = Literal["candidate", "reference"]
CANDIDATE: Role = "candidate"
REFERENCE: Role = "reference"
_RUNTIME = ("gf_cores.c", "gf_hooks.c", "gf_pool.c")  # what kernels run on; the rest is about steps
_DEVICE = {"cpu": "gf_device_cpu.c", "cuda": "gf_device_cuda.c"}
_HARNESS = ("trial/gf_trial.c", "trial/gf_trial_cache.c", "trial/gf_trial_json.c", "trial/gf_trial_values.c")
CUDA_SOURCE = "kernels.cu"  # beside a GPU's trial
_TYPES = {"f": "FLOAT", "i": "SIGNED", "u": "UNSIGNED", "b": "BOOL"}  # by NumPy's kind


@dataclass(frozen=True)
class Measurement:
    """`error` is max |candidate - reference| / max |reference|, of the worst output."""

    error: float
    seconds: tuple[float, ...]  # of the candidate, per run, one per turn
    reference: tuple[float, ...]  # of the untuned kernel, in turn with it


class TrialFailed(Exception):  # noqa: N818 (one of the ends of a trial, not a fault of ours)
    """It crashed, hung or failed to build: the text says which. Never fatal to a session."""


class Runner(Protocol):
    """Runs trials somewhere."""

    kind: str  # "measured", or "emulated"
    form: Kind  # what it runs

    def boards(self) -> int:
        """Trials that it can run at the same time."""

    def read_machine(self) -> dict[str, Any]:
        """What is known of the machine that ran the last trial."""

    def run(self, built: Path, timeout: float) -> Measurement:
        """Run a built trial; raises TrialFailed."""

    def close(self) -> None:
        """Let go of what it holds."""


@dataclass(frozen=True)
class TrialKernel:
    """A compiled kernel of a trial; a CPU's reference is compiled once, and linked into many."""

    object: Path  # of a GPU's kernels the C that launches them
    workspace: Workspace
    takes_workspace: bool = False  # as one more argument
    prepare: Path | None = None  # runs once, before: what it makes of the weights is taken in their place
    prepared_bytes: int = 0

    @property
    def objects(self) -> list[Path]:
        """What is linked into a trial."""
        return [self.object] if self.prepare is None else [self.object, self.prepare]


def compile_for_trial(
    scheduled: tirx.PrimFunc, role: Role, target: Target, folder: Path, prepare: tirx.PrimFunc | None = None
) -> TrialKernel:
    """The kernel's objects in `folder`, complete whenever they are there: several processes may write the same."""
    kernel = TrialKernel(_compile(scheduled, _symbol(role), folder / f"{role}.o", target), find_workspace(scheduled))
    if prepare is None:
        return kernel
    both = (kernel.workspace, find_workspace(prepare))
    workspace = Workspace(max(each.shared for each in both), max(each.each for each in both))
    made = _compile(prepare, _prepare_symbol(role), folder / f"{role}_prepare.o", target)
    size = 4 * prod(int(extent) for extent in prepare.params[-1].shape)
    return replace(kernel, workspace=workspace, prepare=made, prepared_bytes=size)


def _compile(scheduled: tirx.PrimFunc, symbol: str, path: Path, target: Target) -> Path:
    being_written = path.with_suffix(f".{os.getpid()}.o")
    being_written.write_bytes(compile_kernel(scheduled, symbol, tvm.target.Target(target.tvm), noalias=True))
    return being_written.rename(path)


def build_trial(
    function: tirx.PrimFunc,
    candidate: tirx.PrimFunc,
    reference: tirx.PrimFunc | TrialKernel,
    target: Target,
    folder: Path,
    kind: Kind = "program",
    prepare: tirx.PrimFunc | None = None,
) -> Path:
    """The trial, linked, in `folder`, which is its own. `function` is the kernel before any schedule."""
    folder.mkdir(parents=True, exist_ok=True)
    if target.kind == "cuda":
        if not isinstance(reference, tirx.PrimFunc):
            raise ContractError("a GPU's reference is compiled with its candidate: give it as it is scheduled")
        return link_trial(function, *compile_pair(candidate, reference, target, folder), target, folder, kind)
    made = compile_for_trial(candidate, CANDIDATE, target, folder, prepare)
    if isinstance(reference, tirx.PrimFunc):
        reference = compile_for_trial(reference, REFERENCE, target, folder)
    return link_trial(function, made, reference, target, folder, kind)


def compile_pair(
    candidate: tirx.PrimFunc, reference: tirx.PrimFunc, target: Target, folder: Path
) -> tuple[TrialKernel, TrialKernel]:
    """Both for a GPU, in one module, as its launcher knows but one; a TrialFailed where the GPU would refuse it."""
    scheduled = {_symbol(CANDIDATE): candidate, _symbol(REFERENCE): reference}
    try:
        made = compile_module({symbol: (function, True) for symbol, function in scheduled.items()}, target, folder)
    except ContractError as error:
        raise TrialFailed(f"the candidate cannot be built: {error}") from error
    (folder / CUDA_SOURCE).write_text(made.source)
    spilled, usual = (sum(usage.spill_bytes for usage in made.usages[symbol]) for symbol in scheduled)
    if spilled > usual:
        raise TrialFailed(f"the candidate cannot be built: ptxas spills {spilled} bytes of its registers")
    stubs = made.stubs
    pair = [TrialKernel(stubs, Workspace(nests.workspace, 0), bool(nests.offsets)) for nests in made.nests.values()]
    return pair[0], pair[1]


def link_trial(
    function: tirx.PrimFunc, candidate: TrialKernel, reference: TrialKernel, target: Target, folder: Path, kind: Kind
) -> Path:
    """The program or library.

    A CPU's program for another kind of machine is static: an emulator needs no C library then. A GPU's driver is
    loaded, which takes one.
    """
    table, built = folder / "table.c", folder / NAMES[kind]
    table.write_text(_write_table(function, candidate, reference))
    sources = [table, *(RUNTIME / name for name in (*_HARNESS, *_RUNTIME, _DEVICE[target.kind]))]
    objects = list(dict.fromkeys([*candidate.objects, *reference.objects]))
    if kind == "library":
        link_shared([*sources, RUNTIME / "trial/gf_trial_rpc.c"], objects, built, target)
        return built
    sources.append(RUNTIME / "trial/gf_trial_main.c")
    flags = []
    if target.architecture != platform.machine() and target.kind == "cpu":
        if target.link[0] == ZIG:
            target = replace(target, libc="musl")
        else:
            flags.append("-static")
    link_executable(sources, objects, built, target, flags)
    return built


def read_measurement(text: str) -> Measurement:
    """What a trial prints. A failure that it tells of, and whatever it does not say, is a TrialFailed."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and isinstance(found.get("failure"), str):
        raise TrialFailed(found["failure"])
    try:
        seconds, reference = ([float(value) for value in found[name]] for name in (CANDIDATE, REFERENCE))
        error = float(found["error"])
    except (TypeError, ValueError, KeyError):
        raise TrialFailed(f"the trial's result cannot be read: {_start(text)}") from None
    if not seconds or len(seconds) != len(reference) or not all(value > 0 for value in (*seconds, *reference)):
        raise TrialFailed(f"the trial's times make no sense: {_start(text)}")
    return Measurement(error, tuple(seconds), tuple(reference))


def _start(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _symbol(role: Role) -> str:
    return f"gf_trial_{role}_kernel"


def _prepare_symbol(role: Role) -> str:
    return f"gf_trial_{role}_prepare"


def _write_table(function: tirx.PrimFunc, candidate: TrialKernel, reference: TrialKernel) -> str:
    """What the harness must know: the operands, and each kernel with its workspaces."""
    operands = _describe_operands(function)
    lines = [
        '#include "trial/gf_trial.h"',
        "",
        f"const int gf_trial_operand_count = {len(operands)};",
        "const gf_trial_operand gf_trial_operands[] = {",
        *(f"  {operand}," for operand in operands),
        "};",
    ]
    for role, kernel in ((CANDIDATE, candidate), (REFERENCE, reference)):
        passed = list(range(len(operands) + kernel.takes_workspace))
        prepare, prepared = "NULL", len(operands) + 1
        if kernel.prepare is not None:
            passed[WEIGHTS], prepare = prepared, f"prepare_{role}"
            lines += ["", *_write_call(prepare, _prepare_symbol(role), [WEIGHTS, prepared])]
        lines += [
            "",
            *_write_call(f"run_{role}", _symbol(role), passed),
            f"const gf_trial_kernel gf_trial_{role} = {{",
            f'  "{role}", run_{role}, {kernel.workspace.shared}, {kernel.workspace.each},',
            f"  {prepare}, {kernel.prepared_bytes}}};",
        ]
    return "\n".join(lines) + "\n"


def _write_call(name: str, symbol: str, passed: Sequence[int]) -> list[str]:
    """Hidden: a process may have loaded several trials, each with kernels of these names."""
    parameters = ", ".join(["void *"] * len(passed))
    arguments = ", ".join(f"operands[{index}]" for index in passed)
    return [
        f'__attribute__((visibility("hidden"))) int {symbol}({parameters});',
        f"static int {name}(void *const *operands) {{ return {symbol}({arguments}); }}",
    ]


def _describe_operands(function: tirx.PrimFunc) -> list[str]:
    stored: list[tirx.BufferStore] = []
    structural_walk(function.body, [(tirx.BufferStore, stored.append)])
    described = []
    for parameter in function.params:
        is_output = any(store.buffer.same_as(parameter) for store in stored)
        described.append(_describe(parameter.name, str(parameter.dtype), parameter.shape, is_output))
    return described


def _describe(name: str, dtype: str, shape: Sequence[Any], is_output: bool) -> str:
    element = dtype.removeprefix("T.")
    found = np.dtype(element)
    if found.kind not in _TYPES or element == "float16":
        raise TrialFailed(f"operand '{name}' is of type {element}, which no trial can fill and compare")
    count = prod(int(size) for size in shape)
    return f"{{{count}, GF_TRIAL_{_TYPES[found.kind]}, {found.itemsize}, {int(is_output)}}}"
