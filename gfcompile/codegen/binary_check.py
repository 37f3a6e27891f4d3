"""What a linked file asks of a board's C library, read from the file itself (ELF, 64-bit little-endian).

The linker was told how old the board's library may be; this looks whether it obeyed. An object that was given in by
other hands, or a linker that knows no such option, would fail on the board only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from gfcompile.errors import ContractError, UserError
from gfcompile.targets import Target

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_DYNAMIC_SYMBOLS, _VERSION_OF_SYMBOL, _NEEDED_VERSIONS = 11, 0x6FFFFFFF, 0x6FFFFFFE
_PREFIX = "GLIBC_"

Version = tuple[int, ...]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def check_glibc(path: Path, target: Target) -> None:
    """Refuse a file that would not load on the oldest system the target must run on."""
    if target.glibc is None:
        return
    floor = parse_version(target.glibc)
    above = {name: version for name, version in needed_symbols(path).items() if version > floor}
    if above:
        newest = max(above.values())
        names = ", ".join(sorted(name for name, version in above.items() if version == newest))
        raise UserError(
            f"target '{target.name}': {path.name} needs glibc {show_version(newest)} ({names}), above the floor"
            f' {target.glibc}; link with ["ziglang", "cc"], or raise glibc in the target\'s file'
        )


def needed_glibc(path: Path) -> str | None:
    """The oldest glibc that the file loads with; None if it uses none."""
    versions = needed_symbols(path).values()
    return show_version(max(versions)) if versions else None


def needed_symbols(path: Path) -> dict[str, Version]:
    """Every dynamic symbol that the file takes from glibc, with the version it was bound to."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ContractError(f"{path}: is no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_read_section(data, table + index * size) for index in range(count)]
    by_kind = {section.kind: section for section in sections}
    if _NEEDED_VERSIONS not in by_kind:
        return {}  # static, or needs nothing
    needed = by_kind[_NEEDED_VERSIONS]
    versions = _read_versions(data, needed, sections[needed.link])
    symbols, marks = by_kind[_DYNAMIC_SYMBOLS], by_kind[_VERSION_OF_SYMBOL]
    names = sections[symbols.link]
    found = {}
    for index in range(symbols.size // _SYMBOL.size):
        name, *_ = _SYMBOL.unpack_from(data, symbols.offset + index * _SYMBOL.size)
        (mark,) = struct.unpack_from("<H", data, marks.offset + 2 * index)
        if (mark & 0x7FFF) in versions:
            found[_text(data, names.offset + name)] = versions[mark & 0x7FFF]
    return found


def parse_version(text: str) -> Version:
    """`2.17` as (2, 17)."""
    return tuple(int(part) for part in text.split("."))


def show_version(version: Version) -> str:
    """(2, 17) as `2.17`."""
    return ".".join(map(str, version))


def _read_section(data: bytes, offset: int) -> _Section:
    _, kind, _, _, start, size, link, *_ = _SECTION.unpack_from(data, offset)
    return _Section(kind, start, size, link)


def _read_versions(data: bytes, needed: _Section, names: _Section) -> dict[int, Version]:
    """The mark that symbols carry -> the version of glibc it stands for."""
    found = {}
    file = needed.offset
    while True:
        _, count, _, first, next_file = _NEED.unpack_from(data, file)
        entry = file + first
        for _ in range(count):
            _, _, mark, name, step = _NEED_VERSION.unpack_from(data, entry)
            text = _text(data, names.offset + name)
            if text.startswith(_PREFIX) and text[len(_PREFIX) :].replace(".", "").isdigit():
                found[mark] = parse_version(text.removeprefix(_PREFIX))
            entry += step
        if next_file == 0:
            return found
        file += next_file


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
