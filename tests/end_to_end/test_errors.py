"""Every mistake at the Python door: one line that says what to do, and no trace of the attempt on disk."""

from __future__ import annotations

import functools
import os
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.errors import UserError
from gfcompile.runtime.errors import StepError
from gfcompile.targets import list_targets
from tests.end_to_end.conftest import Artifact, random_batch
from tests.lean import lean_compile
from tests.models.zoo import ZOO

X = torch.zeros(2, 3, 16, 16)


def tiny() -> nn.Module:
    """Few kernels, for failures late in a compile."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def compile_error(out: Path, model: Any = None, x: Any = X, **options: Any) -> str:
    """The message of a compile that must fail, and the assurance that it left nothing beside `out`."""
    before = sorted(out.parent.iterdir()) if out.parent.is_dir() else None
    with pytest.raises(UserError) as caught:
        gfcompile.compile(ZOO["plain"]() if model is None else model, x, out=out, **options)
    assert (sorted(out.parent.iterdir()) if out.parent.is_dir() else None) == before
    text = str(caught.value)
    assert "\n" not in text
    return text


PLAN_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"r": 0}, "r=0: the patch edge must be a whole number, 1 or more; exact=True trains without filtering"),
    ({"r": -1}, "r=-1: the patch edge must be a whole number, 1 or more; exact=True trains without filtering"),
    ({"r": 1.5}, "r=1.5: the patch edge must be a whole number, 1 or more; exact=True trains without filtering"),
    (
        {"r": {"5": 0}},
        "r={'5': 0}: the patch edge must be a whole number, 1 or more; exact=True trains without filtering",
    ),
    ({"r": {"nope": 2}}, "r={'nope': 2}: no layer has that name; `gfcompile inspect MODEL` lists them"),
    (
        {"r": {"0": 2}, "layers": 1},
        "r={'0': 2}: that layer is not a trained convolution; train it with train='0'",
    ),
    ({"layers": 0}, "layers=0: must be 1 or more"),
    (
        {"layers": 999},
        "layers=999: the model has 3 convolutions that count (shortcut projections do not); use layers=3 or less",
    ),
    ({"train": "nope"}, "train='nope': no layer has that name; `gfcompile inspect MODEL` lists them"),
    ({"batchnorm": "off"}, "batchnorm='off': is not known; use eval, train, frozen"),
    ({"compat": "paper"}, "compat='paper': is not known; the only one is reference"),
    (
        {"target": "toaster"},
        f"unknown target 'toaster'; use one of: {', '.join(list_targets())}, or the path of a .toml file",
    ),
    (
        {"target": "toaster.toml"},
        f"target file 'toaster.toml' does not exist; give a .toml file or one of: {', '.join(list_targets())}",
    ),
    (
        {"loss": "hinge"},
        "loss: unknown 'hinge'; use cross_entropy, bce_with_logits, mse, l1, smooth_l1, huber, or module:callable",
    ),
    ({"optimizer": "lion"}, "optimizer: 'lion' is not known; use sgd, adam, adamw, rmsprop"),
    ({"momentum": -1.0}, "optimizer: momentum '-1.0' must be a finite number, 0 or more"),
]


@pytest.mark.parametrize(("options", "text"), PLAN_ERRORS, ids=[str(options) for options, _ in PLAN_ERRORS])
def test_bad_options(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    assert compile_error(tmp_path / "net_step", **{"layers": 2} | options) == text


def test_a_near_miss_is_named(tmp_path: Path) -> None:
    model = ZOO["regression"]()
    assert compile_error(tmp_path / "net_step", model, train="lasst") == (
        "train='lasst': no layer has that name; did you mean 'last'?"
    )


def test_a_model_that_is_no_module(tmp_path: Path) -> None:
    assert compile_error(tmp_path / "net_step", {"weight": 1}) == (
        "model: a 'dict' is not an nn.Module; load it first, or use the command line"
    )


def test_a_float64_model(tmp_path: Path) -> None:
    assert compile_error(tmp_path / "net_step", ZOO["plain"]().double()) == (
        "model: parameters of type torch.float64; convert it first with model.float()"
    )


def test_a_float64_example(tmp_path: Path) -> None:
    assert compile_error(tmp_path / "net_step", x=X.double()) == (
        "example_inputs: type torch.float64; pass float32, or int64 for indices"
    )


def test_two_inputs_for_one(tmp_path: Path) -> None:
    text = compile_error(tmp_path / "net_step", x=(X, X))
    assert text.startswith("model: cannot run on an input of 2x3x16x16 and 2x3x16x16 (TypeError: ")
    assert text.endswith("; give the shape that it takes with example_inputs")


def test_inputs_of_two_batches(tmp_path: Path) -> None:
    assert compile_error(tmp_path / "net_step", x=(X, X[:1])) == (
        "model: inputs of 2x3x16x16 and 1x3x16x16; every input must have the batch as its first axis"
    )


def test_a_model_of_two_inputs(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.conv(x + y)

    Two.__qualname__ = "Two"
    Two.forward.__qualname__ = "Two.forward"
    assert compile_error(tmp_path / "net_step", Two()) == (
        "model: cannot run on an input of 2x3x16x16 (TypeError: Two.forward() missing 1 required positional "
        "argument: 'y'); give the shape that it takes with example_inputs"
    )


def test_an_example_the_model_cannot_take(tmp_path: Path) -> None:
    text = compile_error(tmp_path / "net_step", x=torch.zeros(2, 4, 16, 16))
    assert text.startswith("model: cannot run on an input of 2x4x16x16 (RuntimeError: Given groups=1, weight of size")
    assert text.endswith("; give the shape that it takes with example_inputs")


def test_what_a_trace_on_shapes_lets_pass(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x)[:, torch.arange(4) + 1].mean((2, 3))

    text = compile_error(tmp_path / "net_step", Shifted())
    assert text.startswith("model: cannot run on an input of 2x3x16x16 (IndexError: index 4 is out of bounds")
    assert "Traceback" not in capfd.readouterr().err


@functools.lru_cache
def ramp(size: int) -> torch.Tensor:
    return torch.linspace(0, 1, size)


@pytest.mark.slow
def test_tables_that_a_model_keeps_outside_itself(tmp_path: Path) -> None:
    """They have values in the step, and stay what they are to everybody else."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head((self.conv(x) * ramp(x.shape[-1])).mean((2, 3)))

    model = Positions().eval()
    with lean_compile(model, X, layers=1, out=tmp_path / "net_step") as step:
        np.testing.assert_allclose(step.predict(X), model(X).detach(), rtol=1e-4, atol=1e-5)
    assert type(ramp(16)) is torch.Tensor


def test_a_folder_under_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "net_step"
    assert compile_error(out) == f"out='{out}': cannot write there (File exists); choose another folder"
    assert (tmp_path / "file").read_text() == ""


def test_a_file_system_that_takes_no_files() -> None:
    out = Path("/proc/net_step")
    with pytest.raises(UserError) as caught:
        gfcompile.compile(ZOO["plain"](), X, out=out)
    assert str(caught.value) == (
        "out='/proc/net_step': cannot write there (No such file or directory); choose another folder"
    )


def test_a_name_that_cannot_be_imported(tmp_path: Path) -> None:
    out = tmp_path / "net-step"
    assert compile_error(out) == (
        f"out='{out}': 'net-step' is not a Python module name; use letters, digits and _, it will be imported"
    )


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    out = tmp_path / "net_step"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert compile_error(out) == (f"out='{out}': exists and is not an artifact; choose another folder or remove it")
    assert (out / "thesis.tex").read_text() == "years of work"


def write_target(path: Path, link: str) -> str:
    path.write_text(
        'description = "no linker"\nlanes = 8\nregisters = 16\ncores = 2\ncache_kib = 512\n'
        f'link = ["{link}"]\n[tvm]\nkind = "llvm"\nmtriple = "x86_64-linux-gnu"\nmcpu = "x86-64-v3"\n'
    )
    return str(path)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the targets are chosen to be foreign to a PC")
def test_a_target_that_does_not_run_here(tmp_path: Path) -> None:
    """Told before anything is compiled."""
    for name in ("rpi4", "jetson"):
        assert compile_error(tmp_path / "net_step", target=name) == (
            f"target='{name}': it is for aarch64, this machine is x86_64;"
            " gfcompile.build(...) writes the artifact without loading it"
        )


def test_a_cpu_without_the_instructions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tvm.target import codegen

    monkeypatch.setattr(codegen, "llvm_get_system_cpu", lambda: "x86-64-v2")
    text = compile_error(tmp_path / "net_step", target="x86-64-v3")
    assert text.startswith("target='x86-64-v3': this machine's CPU lacks avx, avx2, fma; gfcompile.build(...) writes")


@pytest.mark.parametrize(("name", "value"), [("GFCOMPILE_JOBS", "0"), ("GFCOMPILE_CACHE_LIMIT", "much")])
def test_what_the_environment_says_wrongly_is_refused_first(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    said: list[str] = []
    text = compile_error(tmp_path / "net_step", tiny(), layers=1, progress=said.append)
    assert text.startswith(f"{name}={value}: ")
    assert said == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "text"),
    [
        ("no-such-cc", "target 'board': 'no-such-cc' is not installed; install a C compiler"),
        ("failing-cc", "target 'board': 'failing-cc' could not link the step (exit code 1)"),
    ],
)
def test_a_failure_after_the_kernels(
    link: str, text: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest a compile can fail by the user's hand: everything it wrote is gone."""
    folder = tmp_path_factory.mktemp("targets")
    shutil.copy("/bin/false", folder / "failing-cc")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    target = write_target(folder / "board.toml", link)
    assert compile_error(tmp_path / "net_step", tiny(), layers=1, target=target) == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupted_compile_leaves_the_old_artifact(eval_artifact: Artifact, tmp_path: Path) -> None:
    folder = eval_artifact.copy_to(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def interrupt(message: str) -> None:
        if message == "writing the artifact":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gfcompile.compile(tiny(), X, layers=1, out=folder, progress=interrupt)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert list(tmp_path.iterdir()) == [folder]


def with_value(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


IMAGES, LABELS = (tensor.numpy() for tensor in random_batch((4, 3, 64, 64), seed=0))
SHAPE_TEXT = "expected (N, 3, 64, 64) with N at most 4; reshape it, or recompile for this shape"
BATCH_ERRORS: list[tuple[np.ndarray, np.ndarray, str]] = [
    (IMAGES[:, :, :16], LABELS, f"x has shape (4, 3, 16, 64), {SHAPE_TEXT}"),
    (IMAGES[0], LABELS, f"x has shape (3, 64, 64), {SHAPE_TEXT}"),
    (IMAGES.transpose(0, 2, 3, 1), LABELS, f"x has shape (4, 64, 64, 3), {SHAPE_TEXT}"),
    (
        np.repeat(IMAGES, 2, axis=0),
        LABELS,
        "x has 8 samples, more than the compiled batch 4; split it, or recompile with --batch 8",
    ),
    (IMAGES.astype(np.float64), LABELS, "x has dtype float64, expected float32; pass x.astype('float32')"),
    (IMAGES.astype(np.uint8), LABELS, "x has dtype uint8, expected float32; pass x.astype('float32')"),
    (IMAGES, LABELS.astype(np.float32), "y has dtype float32, expected integer; pass y.astype('int64')"),
    (IMAGES, LABELS[:3], "x has 4 samples and y has 3; pass equally many"),
    (
        IMAGES,
        with_value(LABELS, (2,), 10),
        "y: label 10 at index 2 is outside 0 to 9; the model has 10 classes, so renumber the labels",
    ),
    (
        IMAGES,
        with_value(LABELS, (0,), -1),
        "y: label -1 at index 0 is outside 0 to 9; the model has 10 classes, so renumber the labels",
    ),
    (with_value(IMAGES, (1, 2, 3, 4), np.nan), LABELS, "x: sample 1 holds NaN; repair the sample or leave it out"),
    (with_value(IMAGES, (3, 0, 0, 0), np.inf), LABELS, "x: sample 3 holds Inf; repair the sample or leave it out"),
]


@pytest.fixture(scope="module")
def step(eval_artifact: Artifact) -> gfcompile.CompiledStep:
    return gfcompile.load(eval_artifact.folder)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["train", "gradients"])
@pytest.mark.parametrize(("x", "y", "text"), BATCH_ERRORS, ids=[text[:24] for _, _, text in BATCH_ERRORS])
def test_bad_batches(step: gfcompile.CompiledStep, call: str, x: np.ndarray, y: np.ndarray, text: str) -> None:
    """Refused at the door: the weights have not moved."""
    before = step.state_dict()
    with pytest.raises(StepError) as caught:
        getattr(step, call)(x, y)
    assert str(caught.value) == f"{call}: {text}"
    after = step.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert step.steps == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "text"),
    [
        (-0.1, "lr: -0.1 is not usable; pass a finite learning rate of 0 or more"),
        (float("nan"), "lr: nan is not usable; pass a finite learning rate of 0 or more"),
        ("fast", "lr: 'fast' is no number; pass a float"),
    ],
)
def test_bad_learning_rates(step: gfcompile.CompiledStep, lr: Any, text: str) -> None:
    with pytest.raises(StepError) as caught:
        step.train(IMAGES, LABELS, lr=lr)
    assert str(caught.value) == text
    assert step.steps == 0


@pytest.mark.slow
def test_bad_thread_count(eval_artifact: Artifact) -> None:
    with pytest.raises(StepError) as caught:
        gfcompile.load(eval_artifact.folder, threads=0)
    assert str(caught.value) == "threads: 0 is no thread count; pass 1 or more, or None for all cores"


@pytest.mark.slow
def test_bad_checkpoints(step: gfcompile.CompiledStep, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    step.save_checkpoint(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(StepError) as caught:
        step.load_checkpoint(path)
    assert str(caught.value) == (
        f"load_checkpoint: '{path}': its content does not match its checksum; use another copy"
    )
    nowhere = tmp_path / "missing" / "state.safetensors"
    with pytest.raises(StepError) as caught:
        step.save_checkpoint(nowhere)
    assert str(caught.value) == (
        f"save_checkpoint: '{nowhere}' cannot be written: No such file or directory;"
        " an older checkpoint there is untouched; choose another place"
    )


def test_a_loss_that_does_not_reach_what_is_trained(tmp_path):
    """A callable may read any output, so only the trace finds out."""

    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.aside = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3)

        def forward(self, x):
            return self.main(x), self.aside(x)

    def first(output, target):
        return (output[0] * target).mean()

    with pytest.raises(UserError) as caught:
        gfcompile.compile(Twins(), torch.zeros(2, 3, 8, 8), layers=1, loss=first, out=tmp_path / "twins_step")
    assert str(caught.value) == (
        "model: the loss does not depend on all that is to be trained; name the layers that it does with train"
    )
    assert not (tmp_path / "twins_step").exists()
