"""The race check against a definition of races: every pair of accesses, looked at one by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.cuda.emulator import EmulatorError, build, launch

BLOCKS, PHASES, THREADS, SHARED = 2, 4, 64, 16
LANES = (0, 1, 32)  # of two warps; the others do nothing
NONE, BLOCK, WARP = range(3)


@dataclass(frozen=True)
class Access:
    """Bytes of device memory (places below SHARED) or of a block's shared memory."""

    block: int
    thread: int
    phase: int
    writes: bool
    is_byte: bool
    place: int

    @property
    def octets(self) -> frozenset[tuple[int | None, int]]:
        owner = self.block if self.place >= SHARED else None
        places = [self.place] if self.is_byte else range(self.place // 4 * 4, self.place // 4 * 4 + 4)
        return frozenset((owner, place) for place in places)

    @property
    def operation(self) -> int:
        return 1 + self.writes + 2 * self.is_byte + 4 * self.place


def is_race(one: Access, other: Access, barriers: list[int]) -> bool:
    if not (one.writes or other.writes) or not one.octets & other.octets:
        return False
    if one.block != other.block:
        return True
    first, last = sorted((one.phase, other.phase))
    between = barriers[first:last]
    ordered = BLOCK in between or (WARP in between and one.thread // 32 == other.thread // 32)
    return one.thread != other.thread and not ordered


@st.composite
def accesses(draw: st.DrawFn) -> list[Access]:
    """Few places and threads, so that many meet."""
    places = draw(st.lists(st.sampled_from([0, 1, 4, SHARED, SHARED + 1, SHARED + 4]), min_size=1, max_size=2))
    one = st.builds(
        Access,
        st.integers(0, BLOCKS - 1),
        st.sampled_from(LANES),
        st.integers(0, PHASES - 1),
        st.sampled_from([False, False, True]),
        st.sampled_from([False, False, True]),
        st.sampled_from(places),
    )
    size = draw(st.integers(2, 6))
    return draw(st.lists(one, max_size=size, unique_by=lambda access: (access.block, access.thread, access.phase)))


@pytest.fixture(scope="module")
def source() -> str:
    return Path(__file__).with_name("random_accesses.cu").read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, source: str) -> Path:
    return build(source, tmp_path_factory.mktemp("races") / "accesses.so", race_check=True)


@pytest.fixture(scope="module")
def quick_library(tmp_path_factory: pytest.TempPathFactory, source: str) -> Path:
    """Without barriers of warps, less is looked at."""
    source = source.replace("__syncwarp();", ";")
    return build(source, tmp_path_factory.mktemp("quick") / "accesses.so", race_check=True)


def has_race(library: Path, made_up: list[Access], barriers: list[int]) -> bool:
    operations = np.zeros((BLOCKS, PHASES, THREADS), np.int32)
    for access in made_up:
        operations[access.block, access.phase, access.thread] = access.operation
    arrays = [operations, np.array(barriers, np.int32), np.zeros(4, np.float32), np.zeros(128, np.float32)]
    try:
        launch(library, "accesses", (BLOCKS,), (THREADS,), arrays)
    except EmulatorError as error:
        return ": race: " in str(error)
    return False


def barrier_lists(kinds: tuple[int, ...]) -> st.SearchStrategy[list[int]]:
    return st.lists(st.sampled_from(kinds), min_size=PHASES, max_size=PHASES)


def read(block: int, thread: int, phase: int) -> Access:
    return Access(block, thread, phase, writes=False, is_byte=False, place=0)


def write(block: int, thread: int, phase: int) -> Access:
    return Access(block, thread, phase, writes=True, is_byte=False, place=0)


@pytest.mark.slow
@settings(max_examples=1000)
@given(accesses(), st.sampled_from([(NONE, BLOCK), (NONE, BLOCK, WARP)]).flatmap(barrier_lists))
@example([read(0, 0, 0), read(1, 0, 0), write(1, 0, 1)], [NONE] * 4)  # the writer has read it last, but not first
@example([read(0, 0, 0), read(0, 1, 0), write(0, 2, 0)], [NONE] * 4)
@example([read(0, 0, 0), read(0, 1, 0), read(0, 2, 0), write(1, 0, 0)], [BLOCK] * 4)
@example([read(0, 0, 0), read(0, 32, 0), write(0, 0, 1)], [WARP] * 4)
@example([read(0, 0, 0), read(0, 1, 0), read(0, 32, 0), write(0, 0, 1)], [WARP] * 4)  # only one reader did not wait
@example([read(0, 0, 0), read(0, 32, 0), read(0, 1, 1), write(0, 1, 2)], [WARP] * 4)
@example([read(0, 0, 0), read(0, 1, 1), write(0, 0, 2)], [WARP] * 4)
def test_every_race_and_nothing_else_is_reported(
    library: Path, quick_library: Path, made_up: list[Access], barriers: list[int]
) -> None:
    races = any(is_race(one, other, barriers) for one, other in combinations(made_up, 2))
    assert has_race(library, made_up, barriers) == races
    if WARP not in barriers:
        assert has_race(quick_library, made_up, barriers) == races
