"""The code of a library as binutils shows it."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tests.boards.conftest import need

_FUNCTION = re.compile(r"[0-9a-f]+ <(.+)>:")
_INSTRUCTION = re.compile(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)")
_BRANCH = re.compile(r"b(\..+)?|cbn?z|tbn?z")
_LATER = re.compile(
    r"[su]dot|usdot|bf(dot|cvt\w*|mmla|mlal[bt])|fml[as]l2?|[su]mmla|usmmla"  # products
    r"|aes\w+|sha\d\w+"  # a Raspberry Pi 3 or 4 has no cryptography
    r"|ld(add|set|clr|eor|[su]max|[su]min)\w*|st(add|set|clr|eor)\w*|cas\w*|swp\w*"  # atomics
)


class Instruction(NamedTuple):
    address: int
    word: str
    operands: str


Code = list[Instruction]


def disassemble(library: Path) -> dict[str, Code]:
    """The instructions of every function."""
    program = need("aarch64-linux-gnu-objdump", "binutils-aarch64-linux-gnu")
    command = [program, "--disassemble", "--no-show-raw-insn", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    functions: dict[str, Code] = defaultdict(list)
    name = ""
    for line in text.splitlines():
        if head := _FUNCTION.match(line):
            name = "" if head[1].endswith("@plt") else head[1]
        elif name and (found := _INSTRUCTION.match(line)):
            functions[name].append(Instruction(int(found[1], 16), found[2], found[3]))
    return functions


def count_products(code: Code) -> int:
    """Multiply-adds of four float32 at a time."""
    return sum(each.word == "fmla" and ".4s" in each.operands for each in code)


def inner_loops(code: Code) -> list[Code]:
    """Those that contain no other: from where a branch leads back to, to the branch."""
    spans = []
    for each in code:
        found = re.search(r"([0-9a-f]+) <", each.operands) if _BRANCH.fullmatch(each.word) else None
        if found and int(found[1], 16) <= each.address:
            spans.append((int(found[1], 16), each.address))
    inner = [
        (start, end)
        for start, end in spans
        if not any((a, b) != (start, end) and start <= a and b <= end for a, b in spans)
    ]
    return [[each for each in code if start <= each.address <= end] for start, end in inner]


def count_spills(code: Code) -> int:
    """Vectors stored on the stack: values that found no register."""
    return sum(each.word in ("str", "stp") and re.match(r"q\d+.*\[sp", each.operands) is not None for each in code)


def is_outside(each: Instruction) -> bool:
    """Whether an Armv8.0 core without optional instructions stops at it: dot products, float16 arithmetic, later ones.

    A conversion between float16 and float32 (fcvt, fcvtl, fcvtn) is Armv8.0's own.
    """
    if _LATER.fullmatch(each.word):
        return True
    if each.word.startswith("f") and not each.word.startswith("fcvt"):
        return re.search(r"\bh\d+\b|\.[248]h\b", each.operands) is not None
    return False


def needed_versions(library: Path) -> set[str]:
    """Versions of glibc's symbols, as readelf lists them."""
    program = need("readelf", "binutils")
    text = subprocess.run([program, "-V", str(library)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"Name: GLIBC_(\S+)", text))
