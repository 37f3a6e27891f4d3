"""Kernels that were compiled before: taken from the user's cache where nothing changed, and the same bytes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import tvm
from torch import nn

from gfcompile.artifact.library import compile_kernels_ahead, emit
from gfcompile.codegen import build, recipes
from gfcompile.codegen.program import read_kernels
from gfcompile.errors import ContractError, UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import SGD, Adam, Optimizer
from gfcompile.progress import silent
from gfcompile.settings.schema import Request
from gfcompile.stages import Lowered, analyse, lower_job, make_scheduler
from gfcompile.targets import find_target
from tests.lean import place_lean

NATIVE = find_target("native")
Objects = Callable[[Lowered], dict[str, bytes]]


@dataclass(frozen=True)
class First:
    """A step, what it compiles to, the kernels that LLVM compiled for it, and the cache that they were put in."""

    lowered: Lowered
    objects: dict[str, bytes]
    compiled: list[str]
    cache: Path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GFCOMPILE_CACHE", str(folder / "cache"))
        compiled = record_compiles(patch)
        step = lowered()
        yield First(step, make_objects(step, folder / "sources"), list(compiled), folder / "cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GFCOMPILE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def filled(first: First, cache: Path) -> Path:
    """The cache as the first compile left it."""
    shutil.copytree(first.cache, cache.parent)
    return cache


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that LLVM had to compile."""
    return record_compiles(monkeypatch)


def record_compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("GFCOMPILE_JOBS", "1")
    made: list[str] = []
    original = build.compile_kernel

    def record(scheduled: object, symbol: str, *arguments: object) -> bytes:
        made.append(symbol)
        return original(scheduled, symbol, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "compile_kernel", record)
    return made


def lowered(r: int = 2, optimizer: Optimizer | None = None) -> Lowered:
    return lower_job(make_job(r, optimizer))


def make_job(r: int = 2, optimizer: Optimizer | None = None) -> Job:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 8 * 8, 5))
        model = nn.Sequential(*layers)
    request = Request(layers=2, r={"*": r})
    example = (torch.zeros(2, 3, 12, 12),)
    return Job(model, example, resolve_loss("cross_entropy"), request, optimizer or SGD())


def make_objects(step: Lowered, folder: Path) -> dict[str, bytes]:
    sources = emit(place_lean(step, NATIVE), folder, silent)
    return {path.name: path.read_bytes() for path in (*sources.objects, sources.driver)}


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    count = iter(range(100))
    return lambda step: make_objects(step, tmp_path / f"sources{os.getpid()}_{next(count)}")


@pytest.mark.slow
def test_a_second_compile_takes_every_kernel(first: First, filled: Path, objects: Objects, compiled: list[str]) -> None:
    assert len(first.compiled) == len(first.objects) - 1  # all but the driver
    assert objects(lowered()) == first.objects
    assert compiled == []


@pytest.mark.slow
@pytest.mark.parametrize("other", [{"optimizer": Adam()}, {"r": 4}], ids=["optimizer", "r"])
def test_another_optimizer_or_r_compiles_what_differs(
    other: dict[str, Any], filled: Path, objects: Objects, compiled: list[str]
) -> None:
    kernels = len(objects(lowered(**other))) - 1
    assert 0 < len(compiled) < kernels / 2


@pytest.mark.slow
def test_the_same_without_a_cache_and_on_several_cores(
    first: First, objects: Objects, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """The first compile had a cache and one core."""
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "0")
    monkeypatch.setenv("GFCOMPILE_JOBS", "3")
    assert objects(first.lowered) == first.objects
    assert not cache.exists()


@pytest.mark.slow
def test_what_is_compiled_ahead_on_all_cores_is_what_was_wanted(
    first: First, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was left to compile are kernels which may write over an operand."""
    monkeypatch.setenv("GFCOMPILE_JOBS", "2")
    told: list[str] = []
    compile_kernels_ahead(first.lowered, make_scheduler(NATIVE), told.append)
    assert all(words.startswith("compiling kernel ") for words in told)
    compiled, scheduler = record_compiles(monkeypatch), make_scheduler(NATIVE)
    assert objects(first.lowered) == first.objects
    kernels = [item for module in first.lowered.modules.values() for item in read_kernels(module).items()]
    in_place = {build.symbol_of(name, found) for name, each in kernels if (found := scheduler(each)).takeovers}
    assert set(compiled) <= in_place
    assert len(compiled) < len(first.compiled) / 2


def test_nothing_is_compiled_ahead_on_one_core(first: First, cache: Path, compiled: list[str]) -> None:
    compile_kernels_ahead(first.lowered, make_scheduler(NATIVE), silent)
    assert compiled == []
    assert not cache.exists()


def test_nothing_is_compiled_ahead_for_a_store_that_could_not_keep_it(
    first: First, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "100KB")
    monkeypatch.setattr(build, "count_jobs", lambda: 2)
    compile_kernels_ahead(first.lowered, make_scheduler(NATIVE), silent)
    assert compiled == []


def test_on_a_full_disk_little_is_compiled_ahead(
    first: First, cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made could not be kept; here, where everything is done by one process, nor is it."""
    cache.parent.mkdir()
    cache.write_text("a file where a folder should be")
    monkeypatch.setattr(build, "count_jobs", lambda: 2)
    compile_kernels_ahead(first.lowered, make_scheduler(NATIVE), silent)
    assert len(compiled) <= 1


def test_what_code_depends_on_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    here = recipes.machine_digest(NATIVE)
    assert recipes.machine_digest(replace(NATIVE, name="other", link=["cc"])) == here
    assert recipes.machine_digest(replace(NATIVE, tvm={**NATIVE.tvm, "mattr": ["+other"]})) != here
    assert recipes.machine_digest(replace(NATIVE, registers=NATIVE.registers * 2)) != here
    monkeypatch.setattr(recipes, "_COMPILER", "another release, or another template")
    assert recipes.machine_digest(NATIVE) != here


def test_the_key_is_of_the_sources_that_were_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    here, imported = recipes.machine_digest(NATIVE), recipes._name_compiler()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: b"edited")
        assert recipes._name_compiler() != imported
        assert recipes.machine_digest(NATIVE) == here
    monkeypatch.setattr(recipes, "__version__", "another release")
    assert recipes._name_compiler() != imported


@pytest.mark.slow
def test_what_a_caller_asks_of_tvm_changes_no_object(first: First, objects: Objects, compiled: list[str]) -> None:
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True, "tirx.debug_keep_trivial_loop": True}):
        assert objects(first.lowered) == first.objects
    assert sorted(compiled) == sorted(first.compiled)


def test_two_kernels_of_one_name_in_c(first: First, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "symbol_of", lambda *_: "gf_kernel_same")
    with pytest.raises(ContractError) as caught:
        make_objects(first.lowered, tmp_path / "sources")
    text = r"kernels '(\w+)' and '(\w+)' differ, and both would be 'gf_kernel_same' in C"
    match = re.fullmatch(text, str(caught.value))
    assert match is not None
    assert match[1] != match[2]


def test_a_limit_that_is_none_is_refused_before_anything_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFCOMPILE_CACHE_LIMIT", "much")
    said: list[str] = []
    with pytest.raises(UserError, match="GFCOMPILE_CACHE_LIMIT=much: must be a number of bytes"):
        analyse(make_job(), progress=said.append)
    assert said == []


@pytest.mark.slow
def test_damage_costs_time_only(first: First, filled: Path, objects: Objects, compiled: list[str]) -> None:
    for path in filled.glob("*/*"):
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
    assert objects(first.lowered) == first.objects
    assert sorted(compiled) == sorted(first.compiled)


@pytest.mark.slow
def test_two_compiles_at_once_one_of_them_killed(first: First, objects: Objects, cache: Path) -> None:
    """What is in the cache afterwards gives the same objects as a compile by itself."""
    other = os.fork()
    if other == 0:
        torch.set_num_threads(1)
        try:
            objects(first.lowered)
        finally:
            os._exit(0)
    while not list(cache.glob("*/*")):
        time.sleep(0.01)
    assert objects(first.lowered) == first.objects
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert objects(first.lowered) == first.objects
    assert all(len(path.name) == 64 or path.name.startswith(".new.") for path in cache.glob("*/*"))
