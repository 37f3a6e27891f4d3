"""The generated C: one function per program, which calls its kernels in order over the arena and the state."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gfcompile.codegen.arena import Placement
from gfcompile.codegen.build import Kernels
from gfcompile.codegen.description import Description, write_tables
from gfcompile.codegen.program import ALIGNMENT, Call, Program
from gfcompile.codegen.state import StateTable
from gfcompile.step import STATE, Role, Value

SIGNATURES = {
    "train": "const void *const *inputs, const float *lr, float *loss",
    "gradients": "const void *const *inputs, float *loss, void *const *gradients",
    "predict": "const void *const *inputs, void *const *outputs",
    "features": "const void *const *inputs, void *const *features",
    "train_features": "const void *const *inputs, const float *lr, float *loss",
}
UPDATING = ("train", "train_features")
ARRAYS = {
    Role.GRADIENT: "gradients",
    Role.OUTPUT: "outputs",
    Role.FEATURE: "features",
}  # the caller's, in the order of the results


@dataclass(frozen=True)
class Planned:
    """A program and where its buffers lie."""

    program: Program
    placement: Placement


def write_driver(
    programs: list[Planned],
    state: StateTable,
    description: Description,
    kernels: Kernels,
    build_id: str,
    guard: int = 0,
    timed: bool = False,
) -> str:
    """The whole of step.c. `guard` is what the placements were planned with: if not 0, the driver checks the guards.

    If `timed`, the library exports `gf_PROGRAM_nanoseconds`, the time spent in each call so far.
    """
    symbols: dict[str, int] = {}
    bodies = []
    literals = _Literals(max(planned.placement.bytes for planned in programs))
    for planned in programs:
        for call in planned.program.calls:
            symbol = kernels.symbols[planned.program.name][call.kernel]
            takes_workspace = kernels.stubs is not None and call.workspace is not None
            symbols[symbol] = len(call.inputs) + len(call.outputs) + int(takes_workspace)
        elsewhere = Role.INPUT if planned.program.name == "train_features" else Role.FEATURE
        doors = [value for value in description.doors if value.role is not elsewhere]
        context = (planned, state, kernels, doors)
        if kernels.stubs is not None:
            function: _Function = _DeviceFunction(*context, literals)
        elif guard:
            function = _GuardedFunction(*context, guard)
        else:
            function = (_TimedFunction if timed else _Function)(*context)
        bodies.append(function.text())
    prototypes = [f"int {symbol}({', '.join(['void *'] * count)});" for symbol, count in sorted(symbols.items())]
    head = [
        *(['#include "gf_guard.h"'] if guard else []),
        *(['#include "gf_device.h"'] if kernels.stubs is not None else []),
        '#include "gf_program.h"',
        "#include <stdint.h>",
        "#include <string.h>",
        *([_CLOCK] if timed else []),
        "",
        f'const char gf_program_build_id[] = "{build_id}";',
        f"const size_t gf_program_arena_bytes = {max(literals.end, 64)};",
        f"const size_t gf_program_scratch_bytes = {kernels.scratch_bytes};",
        write_tables(description),
        "",
        *prototypes,
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join([*bodies, literals.text()]) + "\n"


class _Literals:
    """Constants that a GPU reads: they lie after the last slot of the arena, and are put there once."""

    def __init__(self, start: int) -> None:
        self.end = start
        self._uploads: list[str] = []

    def place(self, name: str, size: int) -> int:
        offset, self.end = self.end, self.end + -(-size // ALIGNMENT) * ALIGNMENT
        self._uploads.append(f"gf_device_upload(arena + {offset}, {name}, {size})")
        return offset

    def text(self) -> str:
        lines = ["int gf_program_prepare(char *arena) {", "  (void)arena;"]
        lines += [f"  if ({upload}) return -1;" for upload in self._uploads]
        return "\n".join([*lines, "  return 0;", "}"])


class _Function:
    """One gf_program_* function."""

    def __init__(self, planned: Planned, state: StateTable, kernels: Kernels, doors: list[Value]) -> None:
        self.doors = doors
        self.program, self.placement = planned.program, planned.placement
        self.state, self.symbols = state, kernels.symbols[planned.program.name]

    def text(self) -> str:
        name = self.program.name
        lines = [*self._tables(), f"int gf_program_{name}(char *arena, void *const *state, {SIGNATURES[name]}) {{"]
        lines += ["  (void)arena; (void)state; (void)inputs;", "  int code;"]
        if name in UPDATING:
            lines.append("  (void)lr;")
        for index, call in enumerate(self.program.calls):
            lines += self._call(index, call)
        lines += [*self._deliveries(), "  return 0;", "}"]
        return "\n".join(lines)

    def _call(self, index: int, call: Call) -> list[str]:
        arguments = ", ".join(f"(void *){self._place(buffer)}" for buffer in (*call.inputs, *call.outputs))
        run = f"  if ((code = {self.symbols[call.kernel]}({arguments}))) return code;"
        if call.workspace is None:
            return [run]
        size = self.program.buffers[call.workspace].bytes
        return [f"  gf_program_share({self._place(call.workspace)}, {size});", run]

    def _tables(self) -> list[str]:
        lines = []
        for index, buffer in enumerate(self.program.buffers):
            if buffer.literal is not None:
                octets = ", ".join(str(octet) for octet in buffer.literal) or "0"
                name = self._literal_name(index)
                lines.append(f"static const uint8_t {name}[] __attribute__((aligned(64))) = {{{octets}}};")
        return lines

    def _literal_name(self, buffer: int) -> str:
        return f"gf_{self.program.name}_literal_{buffer}"

    def _place(self, index: int) -> str:
        if index in self.placement.overwrites:
            return self._place(self.placement.overwrites[index])
        if index in self.placement.delivered:
            return self._destination(self.placement.delivered[index])
        if index in self.placement.offsets:
            return f"(arena + {self.placement.offsets[index]})"
        buffer = self.program.buffers[index]
        if buffer.literal is not None:
            return self._literal_name(index)
        return self._input(buffer.value)  # type: ignore[arg-type]

    def _input(self, value: Value) -> str:
        if value in self.doors:
            return f"inputs[{self.doors.index(value)}]"
        return "lr" if value.role is Role.LR else f"state[{self.state.index(self.program.name, value)}]"

    def _deliveries(self) -> list[str]:
        """Copy what was not written in place to where the caller or the state expects it."""
        lines = []
        for position, (buffer, value) in enumerate(zip(self.program.results, self.program.outputs, strict=True)):
            is_there = buffer in self.placement.overwrites or self.placement.delivered.get(buffer) == position
            if is_there or (value.role in STATE and self.program.name not in UPDATING):
                continue
            lines.append(self._copy(self._destination(position), buffer))
        return lines

    def _copy(self, target: str, buffer: int) -> str:
        return f"  memcpy({target}, {self._place(buffer)}, {self.program.buffers[buffer].bytes});"

    def _destination(self, position: int) -> str:
        """Where the caller, or the state, expects the program's result of this position."""
        value = self.program.outputs[position]
        if value.role not in ARRAYS:
            return "loss" if value.role is Role.LOSS else self._input(value)
        before = [other.role for other in self.program.outputs[:position]]
        return f"{ARRAYS[value.role]}[{before.count(value.role)}]"


_CLOCK = """#include <time.h>

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}"""


class _TimedFunction(_Function):
    """For profiles: adds up the time of every call."""

    def _call(self, index: int, call: Call) -> list[str]:
        clock = f"{self._clock()}[{index}]"
        return [f"  {clock} -= now();", *super()._call(index, call), f"  {clock} += now();"]

    def _tables(self) -> list[str]:
        size = max(len(self.program.calls), 1)
        exported = f'__attribute__((visibility("default"))) int64_t {self._clock()}[{size}];'
        return [*super()._tables(), exported]

    def _clock(self) -> str:
        return f"gf_{self.program.name}_nanoseconds"


class _DeviceFunction(_Function):
    """A GPU's: every pointer is the device's, and a kernel's workspace is its last argument."""

    def __init__(
        self, planned: Planned, state: StateTable, kernels: Kernels, doors: list[Value], literals: _Literals
    ) -> None:
        super().__init__(planned, state, kernels, doors)
        self.literals = {
            index: literals.place(self._literal_name(index), buffer.bytes)
            for index, buffer in enumerate(self.program.buffers)
            if buffer.literal is not None
        }

    def _call(self, index: int, call: Call) -> list[str]:
        workspace = () if call.workspace is None else (call.workspace,)
        places = (*call.inputs, *call.outputs, *workspace)
        arguments = ", ".join(f"(void *){self._place(buffer)}" for buffer in places)
        return [f"  if ((code = {self.symbols[call.kernel]}({arguments}))) return code;"]

    def _place(self, index: int) -> str:
        return f"(arena + {self.literals[index]})" if index in self.literals else super()._place(index)

    def _copy(self, target: str, buffer: int) -> str:
        size = self.program.buffers[buffer].bytes
        return f"  if ((code = gf_device_copy({target}, {self._place(buffer)}, {size}))) return code;"


class _GuardedFunction(_Function):
    """The debug build's: paints the guards of what a call brings to life, and looks at all of them after it."""

    def __init__(self, planned: Planned, state: StateTable, kernels: Kernels, doors: list[Value], guard: int) -> None:
        super().__init__(planned, state, kernels, doors)
        self.guard = guard

    def _call(self, index: int, call: Call) -> list[str]:
        guards = f"&{self._table_name('guards')}, arena, {index}"
        delivered = [output for output in call.outputs if output in self.placement.delivered]  # the caller's memory
        return [
            f"  gf_guard_paint({guards});",
            *(f"  memset({self._place(b)}, GF_UNWRITTEN, {self.program.buffers[b].bytes});" for b in delivered),
            *super()._call(index, call),
            f"  if ((code = gf_guard_check({guards}, {json.dumps(call.kernel)}))) return code;",
        ]

    def _tables(self) -> list[str]:
        slots, guards = self._table_name("slots"), self._table_name("guards")
        rows = self._slots()
        return [
            *super()._tables(),
            f"static const gf_slot {slots}[] = {{",
            *(f"  {row}," for row in rows),
            "};",
            f"static const gf_guards {guards} = {{{slots}, {len(rows)}, {self.guard}}};",
        ]

    def _table_name(self, table: str) -> str:
        return f"gf_{self.program.name}_{table}"

    def _slots(self) -> list[str]:
        last = self.program.last_reads()
        rows = []
        for index, call in enumerate(self.program.calls):
            for output in call.born:
                if output in self.placement.offsets:
                    buffer, offset = self.program.buffers[output], self.placement.offsets[output]
                    fresh = "false" if output in self.placement.shared else "true"
                    life = f"{index}, {last[output]}"
                    rows.append(f"{{{json.dumps(buffer.name)}, {offset}, {buffer.bytes}, {life}, {fresh}}}")
        return rows
