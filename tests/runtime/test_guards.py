"""The guard zones of a debug build, on an arena of bytes that the test writes to itself."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from .conftest import RUNTIME
from .harness import build_program

GUARD = 128
A = B = slice(128, 228)  # padded to 256
C = slice(384, 448)


class Arena:
    """`bytes` under the functions of guards.c."""

    def __init__(self, c: ctypes.CDLL) -> None:
        self.c, self.bytes = c, np.zeros(C.stop + GUARD, np.uint8)

    def paint(self, call: int) -> None:
        self.c.paint(ctypes.c_void_p(self.bytes.ctypes.data), call)

    def check(self, call: int, kernel: str = "work") -> str:
        """The complaint, or nothing."""
        code = self.c.check(ctypes.c_void_p(self.bytes.ctypes.data), call, kernel.encode())
        return str(self.c.text().decode()) if code else ""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    out = tmp_path_factory.mktemp("guards") / "libguards.so"
    c = ctypes.CDLL(
        str(build_program("guards.c", out, *(str(RUNTIME / name) for name in ("gf_pool.c", "gf_cores.c")), "-shared"))
    )
    c.text.restype = ctypes.c_char_p
    return c


@pytest.fixture
def arena(library: ctypes.CDLL) -> Arena:
    return Arena(library)


def test_what_was_not_written_is_nan(arena: Arena) -> None:
    """Slots and zones alike, wherever a float reader looks."""
    arena.paint(0)
    floats = arena.bytes[A.start - GUARD : 256 + GUARD].view(np.float32)
    assert np.isnan(floats).all()
    assert not arena.bytes[256 + GUARD :].any()


def test_writing_a_slot_breaks_nothing(arena: Arena) -> None:
    for call, slot in enumerate((A, B, C)):
        arena.paint(call)
        arena.bytes[slot] = call
        assert arena.check(call) == ""


def test_a_slot_taken_over_keeps_its_values_and_its_zones(arena: Arena) -> None:
    arena.paint(0)
    arena.bytes[A] = 7
    arena.paint(1)
    assert (arena.bytes[A] == 7).all()
    arena.bytes[B.stop] = 0
    assert arena.check(1) == (
        "kernel 'work' (call 1) wrote up to 1 bytes past the end of 'b' (100 bytes, made by call 1);"
        " report this plan as a bug"
    )


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        (228, "1 bytes past the end of 'a'"),  # in the padding
        (231, "4 bytes past the end of 'a'"),
        (383, "156 bytes past the end of 'a'"),
        (127, "1 bytes before the start of 'a'"),
        (0, "128 bytes before the start of 'a'"),
    ],
)
def test_every_byte_of_a_zone_counts(arena: Arena, place: int, damage: str) -> None:
    arena.paint(0)
    arena.bytes[place] ^= 1
    assert arena.check(0) == (
        f"kernel 'work' (call 0) wrote up to {damage} (100 bytes, made by call 0); report this plan as a bug"
    )


def test_in_a_shared_zone_the_call_itself_is_suspected(arena: Arena) -> None:
    """Between `b` and `c` lies one zone: the one who wrote last is named."""
    for call in range(3):
        arena.paint(call)
    arena.bytes[C.start - 2] = 0
    assert arena.check(2) == (
        "kernel 'work' (call 2) wrote up to 2 bytes before the start of 'c' (64 bytes, made by call 2);"
        " report this plan as a bug"
    )


def test_the_dead_are_not_guarded(arena: Arena) -> None:
    for call in range(3):
        arena.paint(call)
    arena.bytes[0] = 0  # below `b`, which call 2 reads last
    assert arena.check(2) != ""
    assert arena.check(3) == ""


def test_a_long_kernel_name_leaves_the_sentence_whole(arena: Arena) -> None:
    arena.paint(0)
    arena.bytes[0] = 0
    assert arena.check(0, "k" * 300) == (
        f"kernel '{'k' * 80}' (call 0) wrote up to 128 bytes before the start of 'a' (100 bytes, made by call 0);"
        " report this plan as a bug"
    )
