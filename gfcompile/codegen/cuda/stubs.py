"""The C between the driver and the GPU: one function per kernel of the program, which launches its parts in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gfcompile.codegen.cuda.launches import Launch


@dataclass(frozen=True)
class Stub:
    """`offsets` are where its intermediates lie in the workspace, which is then one more argument."""

    launches: list[Launch]
    parameters: int
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """What the driver loads: machine code of one architecture, or PTX for it and all later ones."""

    path: Path
    capability: int
    is_ptx: bool

    @property
    def bytes(self) -> int:
        """Its size in the library."""
        return self.path.stat().st_size + int(self.is_ptx)  # text ends with a zero


def write_stubs(stubs: Mapping[str, Stub], images: Sequence[Image]) -> str:
    """The C file with the images, the names of their kernels, and a function per stub."""
    kernels = [launch.kernel for stub in stubs.values() for launch in stub.launches]
    numbers = {kernel: number for number, kernel in enumerate(kernels)}
    lines = ['#include "gf_cuda.h"', ""]
    for index, image in enumerate(images):
        lines += _embed(f"gf_image_{index}", image)
    rows = [
        f"  {{{image.capability}, {int(image.is_ptx)}, gf_image_{index}, {image.bytes}}},"
        for index, image in enumerate(images)
    ]
    lines += ["const gf_cuda_image gf_cuda_images[] = {", *rows, "};"]
    lines += [f"const int gf_cuda_image_count = {len(images)};", ""]
    lines += ["const char *const gf_cuda_kernels[] = {", *(f'  "{kernel}",' for kernel in kernels), "};"]
    lines += [f"const int gf_cuda_kernel_count = {len(kernels)};", ""]
    for symbol, stub in stubs.items():
        lines += _function(symbol, stub, numbers)
    return "\n".join(lines)


def _embed(name: str, image: Image) -> list[str]:
    """The file's bytes under a symbol; the assembler reads it, so no compiler has to parse numbers."""
    terminator = "\\n.byte 0" if image.is_ptx else ""
    return [
        f'__asm__(".section .rodata\\n.balign 64\\n{name}:\\n.incbin \\"{image.path}\\"{terminator}\\n.previous");',
        f'extern const unsigned char {name}[] __attribute__((visibility("hidden")));',
        "",
    ]


def _function(symbol: str, stub: Stub, numbers: Mapping[str, int]) -> list[str]:
    names = [f"p{position}" for position in range(stub.parameters)]
    workspace = ["workspace"] if stub.offsets else []
    lines = [f"int {symbol}({', '.join(f'void *{name}' for name in (*names, *workspace))}) {{"]
    for position, offset in enumerate(stub.offsets, stub.parameters):
        lines.append(f"  void *p{position} = (char *)workspace + {offset};")
    for launch in stub.launches:
        arguments = ", ".join(f"&p{position}" for position in launch.arguments)
        sizes = ", ".join(map(str, (*launch.grid, *launch.block)))
        call = f"gf_cuda_launch({numbers[launch.kernel]}, {sizes}, (void *[]){{{arguments}}})"
        lines.append(f"  if ({call}) return -1;")
    unused = sorted(set(range(stub.parameters)) - {at for launch in stub.launches for at in launch.arguments})
    lines += [f"  (void)p{position};" for position in unused]
    return [*lines, "  return 0;", "}", ""]
