"""That a lean compile builds what a whole one builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gfcompile
from tests.lean import lean_compile
from tests.models.zoo import ZOO


@pytest.mark.slow
def test_the_library_is_the_same(tmp_path: Path) -> None:
    built = []
    for name, compile_ in (("whole", gfcompile.compile), ("lean", lean_compile)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = ZOO["plain"]()
        out = tmp_path / name / "plain_step"
        compile_(model, torch.zeros(2, 3, 16, 16), layers=2, r=2, tuning=False, out=out).close()
        built.append(
            [(out / file).read_bytes() for file in ("libstep.so", "weights.safetensors", "selftest.safetensors")]
        )
    assert built[0] == built[1]
