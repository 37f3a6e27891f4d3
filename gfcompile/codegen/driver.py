"""The generated C: three functions that call the kernels in order over the arena and the state."""

from __future__ import annotations

from dataclasses import dataclass

from gfcompile.codegen.arena import Placement
from gfcompile.codegen.build import Kernels
from gfcompile.codegen.program import Program
from gfcompile.codegen.state import StateTable
from gfcompile.step import Role, Value

SIGNATURES = {
    "train": "const void *const *inputs, const float *lr, float *loss",
    "gradients": "const void *const *inputs, float *loss, void *const *gradients",
    "predict": "const void *const *inputs, void *const *outputs",
}
DOOR = {Role.INPUT: 0, Role.TARGET: 1, Role.SAMPLE_WEIGHT: 2}  # positions in `inputs`


@dataclass(frozen=True)
class Planned:
    """A program and where its buffers lie."""

    program: Program
    placement: Placement


def write_driver(programs: list[Planned], state: StateTable, kernels: Kernels, build_id: str) -> str:
    """The whole of step.c."""
    symbols: dict[str, int] = {}
    bodies = []
    for planned in programs:
        for call in planned.program.calls:
            symbol = kernels.symbols[planned.program.name][call.kernel]
            symbols[symbol] = len(call.inputs) + len(call.outputs)
        bodies.append(_Function(planned, state, kernels).text())
    prototypes = [f"int {symbol}({', '.join(['void *'] * count)});" for symbol, count in sorted(symbols.items())]
    sizes = ", ".join(str(entry.bytes) for entry in state.entries) or "0"
    arena = max(planned.placement.bytes for planned in programs)
    head = [
        '#include "gf_program.h"',
        "#include <stdint.h>",
        "#include <string.h>",
        "",
        f'const char gf_program_build_id[] = "{build_id}";',
        f"const int gf_program_tensor_count = {len(state.entries)};",
        f"const size_t gf_program_tensor_bytes[] = {{{sizes}}};",
        f"const size_t gf_program_arena_bytes = {max(arena, 64)};",
        f"const size_t gf_program_scratch_bytes = {kernels.scratch_bytes};",
        "",
        *prototypes,
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join(bodies) + "\n"


class _Function:
    """One gf_program_* function."""

    def __init__(self, planned: Planned, state: StateTable, kernels: Kernels) -> None:
        self.program, self.placement = planned.program, planned.placement
        self.state, self.symbols = state, kernels.symbols[planned.program.name]

    def text(self) -> str:
        name = self.program.name
        lines = [*self._literals(), f"int gf_program_{name}(char *arena, void *const *state, {SIGNATURES[name]}) {{"]
        lines += ["  (void)arena; (void)state; (void)inputs;", "  int code;"]
        if name == "train":
            lines.append("  (void)lr;")
        for call in self.program.calls:
            arguments = ", ".join(f"(void *){self._place(buffer)}" for buffer in (*call.inputs, *call.outputs))
            lines.append(f"  if ((code = {self.symbols[call.kernel]}({arguments}))) return code;")
        lines += [*self._deliveries(), "  return 0;", "}"]
        return "\n".join(lines)

    def _literals(self) -> list[str]:
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
        if index in self.placement.offsets:
            return f"(arena + {self.placement.offsets[index]})"
        buffer = self.program.buffers[index]
        if buffer.literal is not None:
            return self._literal_name(index)
        return self._input(buffer.value)  # type: ignore[arg-type]

    def _input(self, value: Value) -> str:
        if value.role in DOOR:
            return f"inputs[{DOOR[value.role]}]"
        return "lr" if value.role is Role.LR else f"state[{self.state.index(self.program.name, value)}]"

    def _deliveries(self) -> list[str]:
        """Copy what was not written in place to where the caller or the state expects it."""
        lines = []
        counts = {Role.GRADIENT: 0, Role.OUTPUT: 0}
        for buffer, value in zip(self.program.results, self.program.outputs, strict=True):
            if buffer in self.placement.overwrites:
                continue
            if value.role in counts:
                array = "gradients" if value.role is Role.GRADIENT else "outputs"
                target = f"{array}[{counts[value.role]}]"
                counts[value.role] += 1
            elif value.role is Role.LOSS:
                target = "loss"
            elif self.program.name != "train":
                continue
            else:
                target = self._input(value)
            lines.append(f"  memcpy({target}, {self._place(buffer)}, {self.program.buffers[buffer].bytes});")
        return lines
