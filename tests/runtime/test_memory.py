"""Large blocks begin at a huge page and ask for more of them; small ones stay as they were."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .conftest import RUNTIME
from .harness import build_program

HUGE_PAGE, LINE = 2 << 20, 64
ASKS = "hg"  # Linux's word for a mapping that was advised so


needs_huge_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this kernel has no transparent huge pages"
)


@needs_huge_pages
@pytest.mark.parametrize(("size", "is_large"), [(0, False), (1000, False), (HUGE_PAGE - LINE, False), (HUGE_PAGE, True),
                                               (5_000_000, True)])  # fmt: skip
def test_large_blocks_ask_for_huge_pages(tmp_path: Path, size: int, is_large: bool) -> None:
    options = [str(RUNTIME / name) for name in ("gf_cores.c", "gf_pool.c")]
    program = build_program("large_block.c", tmp_path / "large_block", *options)
    done = subprocess.run([program, str(size)], capture_output=True, text=True, check=True)
    place, flags = done.stdout.splitlines()
    assert int(place) % (HUGE_PAGE if is_large else LINE) == 0
    assert (ASKS in flags.split()) == is_large
