"""A training that diverged: said once, and never written over what is finite, in C and in Python."""

from __future__ import annotations

import ctypes
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gfcompile.codegen.link import runtime_sources
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.step import Step

from .c_interface import C, Progress
from .conftest import FLAGS, HERE, RUNTIME, Build

Batch = tuple[np.ndarray, np.ndarray]
DIVERGED = 9
INSTEAD = "nothing was written; load the last checkpoint and train with a smaller lr"


def refusal(step: Step, path: Path) -> str:
    with pytest.raises(StepError) as caught:
        step.save_checkpoint(path)
    return str(caught.value)


def refusal_in_c(step: Step, path: Path) -> str:
    """Of the very same step: what gf_step_save says."""
    c, progress = C(step._folder / "libstep.so"), Progress(steps=step.steps, lr=0.05)
    code = c.gf_step_save(ctypes.c_void_p(step._handle), str(path).encode(), ctypes.byref(progress))
    assert code == c.gf_error_code() == DIVERGED
    return c.error()


def warned(step: Step, *batch: Any, lr: float) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step.train(*batch, lr=lr)
    assert all(each.category is RuntimeWarning and each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def test_the_first_bad_loss_warns_and_nothing_is_saved(build: Build, batch: Batch, tmp_path: Path) -> None:
    path = tmp_path / "ckpt"
    with Step.load(build()) as step:
        step.train(*batch)
        step.save_checkpoint(path)
        before = path.read_bytes()
        for _ in range(2):  # loading arms the warning again
            assert warned(step, *batch, lr=1e30) == []
            assert warned(step, *batch, lr=1e30) == [
                "train: the loss is inf at step 3, and parameter 'fc.weight' is not finite any more;"
                " load the last checkpoint and train with a smaller lr"
            ]
            assert warned(step, *batch, lr=1e30) == []
            text = f"training diverged: parameter 'fc.weight' is not finite after step 4; {INSTEAD}"
            assert refusal(step, path) == f"save_checkpoint: {text}"
            assert refusal_in_c(step, path) == f"gf_step_save: {text}"
            assert refusal(step, tmp_path / "new") == f"save_checkpoint: {text}"
            assert refusal_in_c(step, tmp_path / "new") == f"gf_step_save: {text}"
            assert path.read_bytes() == before
            step.load_checkpoint(path)
            assert (step.steps, warned(step, *batch, lr=0.05)) == (1, [])
            step.load_checkpoint(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ckpt", "linear_step"]


def test_a_bad_loss_over_a_finite_state(build: Build, batch: Batch, tmp_path: Path) -> None:
    """The weights are huge, but finite; the rate of 0 keeps them so."""
    with Step.load(build()) as step:
        step.train(*batch, lr=1e20)
        assert warned(step, *batch, lr=0.0) == [
            "train: the loss is inf at step 2, and all parameters are still finite;"
            " load the last checkpoint and train with a smaller lr"
        ]
        text = f"training diverged: the loss of step 2 is not finite; {INSTEAD}"
        assert refusal(step, tmp_path / "ckpt") == f"save_checkpoint: {text}"
        assert refusal_in_c(step, tmp_path / "ckpt") == f"gf_step_save: {text}"
        for role, name, _ in step._state.items("parameter"):
            step._state.set(role, name, np.zeros_like(step._state.get(role, name)))
        c, progress = C(step._folder / "libstep.so"), Progress(steps=2, lr=0.05)
        handle = ctypes.c_void_p(step._handle)
        assert c.gf_step_save(handle, str(tmp_path / "ckpt").encode(), ctypes.byref(progress)) == 0, c.error()


@pytest.mark.slow
def test_an_optimizer_state_that_is_not_finite(build: Build, batch: Batch, tmp_path: Path) -> None:
    with Step.load(build("SWOLLEN")) as step:
        assert warned(step, *batch, lr=0.05) == []
        what = "optimizer state 'momentum_buffer/fc.weight' is not finite after step 1"
        assert refusal(step, tmp_path / "ckpt") == f"save_checkpoint: training diverged: {what}; {INSTEAD}"
        assert refusal_in_c(step, tmp_path / "ckpt") == f"gf_step_save: training diverged: {what}; {INSTEAD}"
    assert not list(tmp_path.glob("*ckpt*"))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_every_place_of_a_tensor_is_looked_at(build: Build, tmp_path: Path, bad: float) -> None:
    with Step.load(build()) as step:
        good = {
            (role, name): step._state.get(role, name) for role, name, _ in step._state.items("parameter", "optimizer")
        }
        for (role, name), values in good.items():
            for place in range(values.size):
                step._state.set(
                    role, name, np.where(np.arange(values.size).reshape(values.shape) == place, bad, values)
                )
                assert f"'{name}' is not finite after step 0" in refusal(step, tmp_path / "ckpt")
                assert f"'{name}' is not finite after step 0" in refusal_in_c(step, tmp_path / "ckpt")
            step._state.set(role, name, values)
        step.save_checkpoint(tmp_path / "ckpt")


@pytest.mark.slow
def test_features_warn_as_samples_do(build: Build, batch: Batch, tmp_path: Path) -> None:
    with Step.load(build("GF_FEATURES")) as step, step.open_cache(tmp_path / "cache", 4) as cache:
        cache.train(*batch, np.arange(4), lr=1e30)
        with pytest.warns(RuntimeWarning, match="^train: the loss is inf at step 2, and parameter 'fc.weight' is not"):
            cache.train(*batch, np.arange(4), lr=1e30)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step.train_features(step.features(batch[0]), batch[1])
        assert "parameter 'fc.weight' is not finite after step 3" in refusal(step, tmp_path / "ckpt")


@pytest.mark.slow
def test_finite_numbers_of_every_type(tmp_path: Path) -> None:
    """The bits that gf_finite.c looks at, against numpy: all half floats, and the edges of the others."""
    source = '#include "gf_finite.c"\n__attribute__((visibility("default"))) int ask(int type, const char *at);\n'
    source += "int ask(int type, const char *at) { return is_finite((gf_dtype)type, at); }\n"
    (tmp_path / "ask.c").write_text(source)
    rest = [path for path in runtime_sources("cpu") if path.name != "gf_finite.c"]
    options = [*FLAGS, f"-I{RUNTIME}", '-DBUILD_ID=""', "-shared", "-pthread"]
    sources = [tmp_path / "ask.c", HERE / "linear_program.c", *rest]
    subprocess.run(["gcc", *options, *sources, "-lm", "-o", tmp_path / "ask.so"], check=True)
    ask = ctypes.CDLL(str(tmp_path / "ask.so")).ask
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    for kind, values in (
        (1, halves),
        (0, np.float32([0, 1, -1, 3.4e38, 1e-45, np.inf, -np.inf, np.nan])),
        (2, np.float64([0, 1, -1, 1.7e308, 5e-324, np.inf, -np.inf, np.nan])),
        (3, np.arange(-4, 4)),
    ):
        found = [bool(ask(kind, value.tobytes())) for value in values]
        assert found == np.isfinite(values).tolist()


@pytest.mark.parametrize("lr", [1e300, -0.5, np.nan])
def test_a_rate_that_no_step_takes_is_neither_saved_nor_loaded(build: Build, tmp_path: Path, lr: float) -> None:
    with Step.load(build()) as step:
        c, progress = C(step._folder / "libstep.so"), Progress(lr=lr)
        handle = ctypes.c_void_p(step._handle)
        assert c.gf_step_save(handle, str(tmp_path / "ckpt").encode(), ctypes.byref(progress)) == 1
        assert c.error() == (
            "gf_step_save: the step count or lr is negative, lr"
            f" '{lr:g}' is not finite as float32, or the note has no end"
        )
