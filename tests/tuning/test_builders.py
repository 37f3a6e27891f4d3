"""Workers build trials; what ends a worker is the end of one candidate only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tvm

from gfcompile.codegen.schedules.choices import Decisions
from gfcompile.errors import UserError
from gfcompile.targets import find_target
from gfcompile.tuning.builders import BuildPool, Built
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.space import Candidate
from gfcompile.tuning.trial import TrialFailed
from tests.tuning.kernels import convolution, scaled
from tests.tuning.makers import make

NATIVE = find_target("native")
LONG = 600.0  # no build of these tests takes so long on any machine


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[BuildPool]:
    with BuildPool(NATIVE, 2, tmp_path / "trials", make=make, timeout=LONG) as pool:
        yield pool


def text(function: tvm.tirx.PrimFunc) -> str:
    return str(tvm.ir.save_json(function))


def asked(decisions: Decisions) -> Candidate:
    return Candidate("any", decisions)


@pytest.mark.slow
def test_trials_come_back_by_their_keys(pool: BuildPool) -> None:
    kernels = {"conv": convolution(), "scaled": scaled(2.0)}
    for name, function in kernels.items():
        for turn in range(2):
            pool.submit((name, turn), text(function), asked({}))
    assert pool.outstanding == 4
    results = dict(pool)
    assert pool.outstanding == 0
    assert sorted(results) == [("conv", 0), ("conv", 1), ("scaled", 0), ("scaled", 1)]
    assert len({built.path for built in results.values()}) == 4
    for built in results.values():
        assert isinstance(built, Built)
        assert LocalRunner(NATIVE, 2, 1e-4).run(built.path, 60).error == 0


def test_more_may_be_submitted_while_results_are_read(pool: BuildPool) -> None:
    pool.submit(0, text(scaled(2.0)), asked({}))
    keys = []
    for key, built in pool:
        assert isinstance(built, Built)
        keys.append(key)
        if key < 3:
            pool.submit(key + 1, text(scaled(2.0)), asked({}))
    assert keys == [0, 1, 2, 3]


def test_a_crash_is_one_candidate_s(pool: BuildPool) -> None:
    for key in range(6):
        pool.submit(key, text(scaled(2.0)), asked({"abort": 1} if key % 2 else {}))
    results = dict(pool)
    assert {str(results[key]) for key in (1, 3, 5)} == {"the build crashed: SIGABRT"}
    assert all(isinstance(results[key], Built) for key in (0, 2, 4))


def test_an_error_is_told_by_its_last_line(pool: BuildPool) -> None:
    pool.submit(0, text(scaled(2.0)), asked({"refuse": 1}))
    ((_, failed),) = pool
    assert isinstance(failed, TrialFailed)
    assert str(failed) == "the candidate cannot be built: refuse: '1' is no option"


def test_a_kernel_that_llvm_refuses_is_a_failure(pool: BuildPool) -> None:
    pool.submit(0, text(scaled(2.0)), asked({"bind": 1}))
    ((_, failed),) = pool
    assert isinstance(failed, TrialFailed)
    assert str(failed).startswith("the candidate cannot be built: ")


def test_a_build_that_hangs_is_ended(pool: BuildPool) -> None:
    """Its worker is replaced: the next candidate is built."""
    pool.timeout = 0.5
    for key in range(2):
        pool.submit(key, text(scaled(2.0)), asked({"hang": 1}))
    assert {str(failed) for _, failed in pool} == {"the build was ended after 0.5 s"}
    pool.timeout = LONG
    pool.submit(2, text(scaled(2.0)), asked({}))
    ((_, built),) = pool
    assert isinstance(built, Built)


def test_close_ends_the_workers_at_work(tmp_path: Path) -> None:
    pool = BuildPool(NATIVE, 1, tmp_path, make=make, timeout=LONG)
    told = tmp_path / "worker"
    pool.submit(0, text(scaled(2.0)), asked({"tell": str(told), "hang": 1}))
    while not (told.exists() and told.read_text().endswith(" ")):
        time.sleep(0.01)
    pid = int(told.read_text())
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.outstanding == 0


def test_a_library_for_a_board(tmp_path: Path) -> None:
    with BuildPool(find_target("rpi3"), 1, tmp_path, "library", make, LONG) as pool:
        pool.submit(0, text(scaled(2.0)), asked({}))
        ((_, built),) = pool
    assert isinstance(built, Built)
    assert built.path.name == "trial.so"
    assert built.path.read_bytes()[18] == 183  # EM_AARCH64


def test_a_missing_linker_is_the_users_business(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'no-such-cc' is not installed"):
        BuildPool(replace(NATIVE, link=["no-such-cc"]), 1, tmp_path)
