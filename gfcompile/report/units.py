"""How numbers are written for people: KB is 1024 bytes, as in the paper's tables."""

from __future__ import annotations


def in_bytes(size: float) -> str:
    """1536 -> "1.50 KB"."""
    if size < 1024:
        return f"{size:.0f} B"
    if size < 1024**2:
        return f"{size / 1024:.2f} KB"
    return f"{size / 1024**2:.2f} MB"


def in_flops(count: int) -> str:
    """28_320_000 -> "28.32 M"."""
    for unit, scale in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return str(count)


def by_x(sizes: list[int] | tuple[int, ...]) -> str:
    """(1, 3, 32, 32) -> "1x3x32x32"."""
    return "x".join(map(str, sizes))
