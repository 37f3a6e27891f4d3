"""What Linux tells of a machine, from files as it has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gfcompile.tuning.machine import read_machine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: A CPU @ 2.00GHz\n\nprocessor\t: 1\nmodel name\t: Another\n", "A CPU @ 2.00GHz"),
        ("processor\t: 0\nCPU part\t: 0xd08\n\nModel\t\t: Raspberry Pi 4 Model B\n", "Raspberry Pi 4 Model B"),
        ("processor\t: 0\nCPU part\t: 0xd03\n", "CPU part 0xd03"),
    ],
)  # fmt: skip
def test_a_machine_that_tells_all(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    (tmp_path / "scaling_cur_freq").write_text("1500000\n")
    (tmp_path / "scaling_governor").write_text("ondemand\n")
    for zone, heat in (("thermal_zone0", "61500\n"), ("thermal_zone1", "70100\n"), ("thermal_zone2", "-274000\n")):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "temp").write_text(heat)
    assert read_machine(tmp_path / "cpuinfo", tmp_path, tmp_path) == {
        "cpu": name,
        "cores": len(os.sched_getaffinity(0)),
        "governor": "ondemand",
        "khz": 1_500_000,
        "millicelsius": 70_100,
    }


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert read_machine(gone, gone, gone) == {"cores": len(os.sched_getaffinity(0))}
