"""Images of modules as small as they can be: what a driver reads of them before it loads them, and no code."""

from __future__ import annotations

import struct
from collections.abc import Sequence

MACHINE_CUDA = 190
SYMBOLS, STRINGS, GLOBAL_FUNCTION = 2, 3, 0x12


def write_cubin(arch: int, kernels: Sequence[str]) -> bytes:
    """An ELF file for sm_`arch` with a symbol for each kernel."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in kernels)
    symbols = b"\0" * 24
    for name in kernels:
        symbols += struct.pack("<IBBHQQ", names.index(name.encode() + b"\0"), GLOBAL_FUNCTION, 0, 1, 0, 0)
    symbols_at = 64
    names_at = symbols_at + len(symbols)
    sections_at = -(-(names_at + len(names)) // 8) * 8
    ident = b"\x7fELF" + bytes([2, 1, 1, 51, 7]) + b"\0" * 7
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, MACHINE_CUDA, 1, 0, 0, sections_at, arch, 64, 0, 0, 64, 3, 2)
    sections = b"\0" * 64
    sections += struct.pack("<IIQQQQIIQQ", 0, SYMBOLS, 0, 0, symbols_at, len(symbols), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, STRINGS, 0, 0, names_at, len(names), 0, 0, 1, 0)
    return (head + symbols + names).ljust(sections_at, b"\0") + sections


def write_ptx(arch: int, kernels: Sequence[str], version: str = "6.4") -> bytes:
    lines = [f".version {version}", f".target sm_{arch}", ".address_size 64"]
    lines += [f".visible .entry {name}()\n{{\n  ret;\n}}" for name in kernels]
    return "\n".join(lines).encode() + b"\0"


def write_table(images: Sequence[tuple[int, bytes]]) -> str:
    """gf_cuda_images for architectures and their images, in C."""
    lines, rows = [], []
    for index, (arch, data) in enumerate(images):
        is_ptx = int(not data.startswith(b"\x7fELF"))
        lines.append(f"static const unsigned char image_{index}[] = {{{', '.join(map(str, data))}}};")
        rows.append(f"{{{arch}, {is_ptx}, image_{index}, {len(data)}}}")
    lines.append(f"const gf_cuda_image gf_cuda_images[] = {{{', '.join(rows)}}};")
    lines.append(f"const int gf_cuda_image_count = {len(images)};")
    return "\n".join(lines) + "\n"
