"""What is known of the machine that trials run on: kept with every trial, and looked at before the next one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_CPU = Path("/proc/cpuinfo")
_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq")
_HEAT = Path("/sys/class/thermal")
HOT = 80_000  # thousandths of a degree: boards slow down soon after
COOL = 70_000


def read_machine(cpu: Path = _CPU, clock: Path = _CLOCK, heat: Path = _HEAT) -> dict[str, Any]:
    """Its name, cores, clock and temperature; what Linux does not tell is left out."""
    zones = [int(text) for zone in sorted(heat.glob("thermal_zone*/temp")) if (text := _read(zone)).isdecimal()]
    khz = _read(clock / "scaling_cur_freq")
    found = {
        "cpu": _cpu_name(_read(cpu)),
        "cores": len(os.sched_getaffinity(0)),
        "governor": _read(clock / "scaling_governor"),
        "khz": int(khz) if khz.isdecimal() else None,
        "millicelsius": max(zones, default=None),
    }
    return {name: value for name, value in found.items() if value not in (None, "")}


def _cpu_name(text: str) -> str:
    """The first of several cores' names; Arm's kernels tell a number instead."""
    fields = [line.partition(":") for line in text.splitlines()]
    names = {name.strip(): value.strip() for name, _, value in reversed(fields)}
    part = names.get("CPU part")
    return names.get("model name") or names.get("Model") or (f"CPU part {part}" if part else "")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # this kernel has no such file
