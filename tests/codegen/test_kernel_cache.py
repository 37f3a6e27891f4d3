"""Kernels that were compiled before: taken from the user's cache where nothing changed, and the same bytes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gfcompile.artifact.library import emit
from gfcompile.codegen import build, recipes
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import SGD, Adam, Optimizer
from gfcompile.progress import silent
from gfcompile.settings.schema import Request
from gfcompile.stages import Lowered, lower_job, place
from gfcompile.targets import find_target
from tests.models.zoo import ZOO

NATIVE = find_target("native")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GFCOMPILE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that LLVM had to compile, here or in a copy of this process."""
    monkeypatch.setenv("GFCOMPILE_JOBS", "1")
    made: list[str] = []
    original = build.compile_kernel

    def record(scheduled: object, symbol: str, *arguments: object) -> bytes:
        made.append(symbol)
        return original(scheduled, symbol, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "compile_kernel", record)
    return made


def lowered(r: int = 2, optimizer: Optimizer | None = None) -> Lowered:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ZOO["plain"]()
    request = Request(layers=2, r={"*": r})
    example = (torch.zeros(2, 3, 16, 16),)
    return lower_job(Job(model, example, resolve_loss("cross_entropy"), request, optimizer or SGD()))


@pytest.fixture
def objects(tmp_path: Path) -> Callable[..., dict[str, bytes]]:
    count = iter(range(100))

    def make(found: Lowered | None = None) -> dict[str, bytes]:
        sources = emit(place(found or lowered(), NATIVE), tmp_path / f"sources{os.getpid()}_{next(count)}", silent)
        return {path.name: path.read_bytes() for path in (*sources.objects, sources.driver)}

    return make


def test_a_second_compile_takes_every_kernel(objects: Callable[..., dict[str, bytes]], compiled: list[str]) -> None:
    first = objects()
    assert len(compiled) == len(first) - 1  # all but the driver
    compiled.clear()
    assert objects() == first
    assert compiled == []


def test_another_optimizer_or_r_compiles_what_differs(
    objects: Callable[..., dict[str, bytes]], compiled: list[str]
) -> None:
    objects()
    for other in (lowered(optimizer=Adam()), lowered(r=4)):
        compiled.clear()
        kernels = len(objects(other)) - 1
        assert 0 < len(compiled) < kernels / 2


def test_the_same_without_a_cache_and_on_several_cores(
    objects: Callable[..., dict[str, bytes]], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "0")
    monkeypatch.setenv("GFCOMPILE_JOBS", "1")
    alone = objects()
    assert not cache.exists()
    monkeypatch.setenv("GFCOMPILE_JOBS", "3")
    assert objects() == alone


def test_what_code_depends_on_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    here = recipes.machine_digest(NATIVE)
    assert recipes.machine_digest(replace(NATIVE, name="other", link=["cc"])) == here
    assert recipes.machine_digest(replace(NATIVE, tvm={**NATIVE.tvm, "mattr": ["+other"]})) != here
    assert recipes.machine_digest(replace(NATIVE, registers=NATIVE.registers * 2)) != here
    monkeypatch.setattr(recipes, "_compiler", lambda: "another release, or another template")
    assert recipes.machine_digest(NATIVE) != here


def test_damage_costs_time_only(objects: Callable[..., dict[str, bytes]], compiled: list[str], cache: Path) -> None:
    first = objects()
    for path in cache.glob("*/*"):
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
    compiled.clear()
    assert objects() == first
    assert len(compiled) == len(first) - 1


def test_two_compiles_at_once_one_of_them_killed(objects: Callable[..., dict[str, bytes]], cache: Path) -> None:
    """What is in the cache afterwards gives the same objects as a compile without it."""
    found = lowered()
    other = os.fork()
    if other == 0:
        torch.set_num_threads(1)
        try:
            objects(found)
        finally:
            os._exit(0)
    while not list(cache.glob("*/*")):
        time.sleep(0.01)
    first = objects(found)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert objects(found) == first
    assert all(len(path.name) == 64 or path.name.startswith(".new.") for path in cache.glob("*/*"))
