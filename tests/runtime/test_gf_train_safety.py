"""gf-train where things go wrong: kills, divergence, two of them on one checkpoint, data that goes away."""

from __future__ import annotations

import ctypes
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime import checkpoint, manifest
from gfcompile.runtime.errors import StepError
from gfcompile.runtime.step import Step
from tests.selection import often

from .c_interface import C, Progress
from .conftest import SAMPLES, Build, Data
from .trainer import options, order, run, start_endless, tensors_of

NORMAL, WILD, TOO_LARGE = "0.05", "1e6", "0.5"
LOST = "was truncated or became unreadable while in use; what was saved last is as it was; restore it and start again"


def rate_of(kill: int) -> str:
    """Of 15 runs one with a rate that explodes at once, and one with one that takes some steps."""
    return WILD if kill % 15 == 7 else TOO_LARGE if kill % 15 == 11 else NORMAL


@pytest.mark.slow
@pytest.mark.parametrize("kills", often([120, 300], [120]))
def test_kills_at_random_moments_lose_nothing_that_was_promised(
    artifact: Path, data: Data, tmp_path: Path, kills: int
) -> None:
    """Processes that write a checkpoint per step, each killed: what was printed as written is there, is finite, and is
    trained on."""
    draw, path = random.Random(0), tmp_path / "run.ckpt"
    command = [artifact / "gf-train", *map(str, options(tmp_path, "--epochs", "1000000000", "--checkpoint-every", "1"))]
    c, promised, continued, torn, diverged = C(artifact / "libstep.so"), 4, 0, 0, 0
    in_c, runs = c.open(artifact), []
    for steps in ("2", "3", "4"):
        began = time.monotonic()
        run(artifact / "gf-train", *options(tmp_path, "--steps", steps, "--threads", "1"))
        runs.append(time.monotonic() - began)  # a short run on this machine: kills shall come before its end and after
    with Step.load(artifact, threads=1) as step:
        for kill in range(kills):
            words = [*command, "--threads", "1", "--lr", rate_of(kill)]
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                time.sleep(draw.uniform(0.0, 1.5 * min(runs)))
                process.kill()
                said, failed = process.communicate()
            assert not failed or (rate_of(kill) != NORMAL and "training diverged at step" in failed), failed
            diverged += bool(failed)
            for line in said.splitlines():
                if line.startswith("continuing from"):
                    resumed = int(line.split("step ")[1].split(",")[0])
                    assert resumed >= promised, said
                    continued += 1
                if line.startswith("checkpoint ") and line.split()[-1].isdigit():
                    promised = int(line.split()[-1])
            left = tmp_path / ".run.ckpt.tmp"
            torn += left.exists() and left.stat().st_size > 100
            found = Progress()
            assert c.gf_step_load(in_c, str(path).encode(), ctypes.byref(found)) == 0, c.error()
            step.load_checkpoint(path)
            assert step.steps == found.steps >= promised
            assert all(np.isfinite(value).all() for value in checkpoint.load(path, step.manifest).tensors.values())
            losses = [step.train(data[0][:4], data[1][:4], float(NORMAL)) for _ in range(10)]
            assert np.isfinite(losses).all()
    c.gf_step_destroy(in_c)
    assert min(continued, torn, diverged, promised - 4) > 0, "the kills missed the checkpoints"
    run(artifact / "gf-train", *options(tmp_path, "--steps", str(promised + 20), "--lr", NORMAL))
    assert not list(tmp_path.glob(".run.ckpt*")), "kills left files behind"


def diverge(artifact: Path, *words: str | Path) -> str:
    """What gf-train says of it, with numbers of no interest taken out."""
    return re.sub(r"(?<=and is )\S+(?= now)", "MORE", run(artifact / "gf-train", *words, code=1))


def test_what_exploded_is_not_kept(artifact: Path, data: Data, tmp_path: Path) -> None:
    """One step at a rate that leaves weights of 1e6: finite, but a training from there would not be."""
    path = tmp_path / "run.ckpt"
    text = (
        "training diverged at step {} with lr 1e+06: the loss was 7.20879 at first and is MORE now; {}; try a smaller"
    )
    assert diverge(artifact, *options(tmp_path, "--lr", WILD, "--steps", "1")) == (
        f"gf-train: {text.format(1, 'no checkpoint was written')} --lr\n"
    )
    assert not list(tmp_path.glob("*run.ckpt*"))
    run(artifact / "gf-train", *options(tmp_path, "--steps", "4"))
    before = path.read_bytes()
    for words in (["--steps", "5"], ["--epochs", "2"], ["--steps", "90", "--checkpoint-every", "1"], ["--epochs", "9"]):
        step = 5 if "5" in words or "90" in words else 6  # or the next step's own loss shows it
        assert diverge(artifact, *options(tmp_path, "--lr", WILD, *words)) == (
            f"gf-train: {text.format(step, 'the checkpoint of step 4 is as it was')} --lr\n"
        )
        assert path.read_bytes() == before
    run(artifact / "gf-train", *options(tmp_path, "--epochs", "4", "--lr", NORMAL))
    mended = tensors_of(path, artifact)
    path.unlink()
    run(artifact / "gf-train", *options(tmp_path, "--epochs", "4", "--lr", NORMAL, "--checkpoint-every", "1"))
    assert tensors_of(path, artifact) == mended, "looking at a state before it is kept has changed it"


def test_restarts_do_not_creep_beyond_the_bound(artifact: Path, data: Data, tmp_path: Path) -> None:
    """A rate a little too large, a process for each step: all are measured by the training's first loss."""
    program, path = artifact / "gf-train", tmp_path / "run.ckpt"
    run(program, *options(tmp_path, "--steps", "1", "--lr", TOO_LARGE))
    for steps in range(2, 50):
        words = [program, *map(str, options(tmp_path, "--steps", str(steps)))]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            break
    assert done.returncode == 1
    assert f"; the checkpoint of step {steps - 1} is as it was; try a smaller --lr" in done.stderr
    with Step.load(artifact) as step:
        epoch, batch = divmod(steps - 1, 3)  # what comes next; at the end of an epoch, once more its first
        chosen = order(0, epoch - (batch == 0), SAMPLES)[4 * batch : 4 * batch + 4]
        untrained = step.train(data[0][chosen], data[1][chosen], lr=0.0)
        step.load_checkpoint(path)
        loss = step.train(data[0][chosen], data[1][chosen], lr=0.0)
    assert 100 < loss <= 1000 * (1 + max(7.20879, untrained)), "kept though it exploded, or ended though it did not"
    assert re.search(r"the loss was \S+ at first and is ", done.stderr), done.stderr


def test_an_odd_batch_is_no_divergence(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Its loss is a million times that of the first, with the artifact's own weights too: training goes on, and what
    really explodes later is still noticed."""
    targets = data[1].copy()
    targets[order(0, 0, SAMPLES)[-1]] = 1e5
    np.save(tmp_path / "y.npy", targets)
    said = run(artifact / "gf-train", *options(tmp_path, "--epochs", "2", "--lr", "1e-9", "--checkpoint-every", "1"))
    assert "checkpoint" in said
    assert "done after 6 steps" in said
    assert "training diverged at step 7 with lr 1e+30" in run(
        artifact / "gf-train", *options(tmp_path, "--epochs", "3", "--lr", "1e30", "--checkpoint-every", "1"), code=1
    )


def test_weights_that_exploded_while_the_loss_did_not(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Samples of zeros do not read the kernel: its loss stays as it was."""
    np.save(tmp_path / "x.npy", np.zeros((SAMPLES, 2), np.float32))
    with Step.load(artifact) as step:
        largest = max(np.abs(step.state_dict()[name]).max() for name in ("fc.weight", "fc.bias"))
        step._state.set("parameter", "fc.weight", np.full((2, 3), 1e9, np.float32))
        step.note = f"gf-train seed 0 samples {SAMPLES} size 4 epoch 0 batch 0 loss 1"
        step.save_checkpoint(tmp_path / "run.ckpt")
    before = (tmp_path / "run.ckpt").read_bytes()
    text = run(artifact / "gf-train", *options(tmp_path, "--steps", "1", "--lr", "0"), code=1)
    assert f"now, the largest weight was {largest:g} and is 1e+09; the checkpoint of step 0 is as it was" in text
    assert (tmp_path / "run.ckpt").read_bytes() == before


def test_a_state_in_doubt_may_recover_and_is_not_kept_before(artifact: Path, data: Data, tmp_path: Path) -> None:
    """A loss of some thousand times the first: at a rate of 0 it stays so, at a usual one it falls."""
    np.save(tmp_path / "x.npy", np.zeros((100, 2), np.float32))
    np.save(tmp_path / "y.npy", np.zeros((100, 3), np.float32))
    with Step.load(artifact) as step:
        step._state.set("parameter", "fc.bias", np.full(3, 100, np.float32))
        step.note = "gf-train seed 0 samples 100 size 4 epoch 0 batch 0 loss 1"
        step.save_checkpoint(tmp_path / "run.ckpt")
    before = (tmp_path / "run.ckpt").read_bytes()
    every = ("--checkpoint-every", "1", "--progress", "0")
    text = run(artifact / "gf-train", *options(tmp_path, "--steps", "3", "--lr", "0", *every), code=1)
    assert text.startswith("gf-train: training diverged at step 3 with lr 0: the loss was 1 at first and is ")
    assert (tmp_path / "run.ckpt").read_bytes() == before
    lines = run(artifact / "gf-train", *options(tmp_path, "--steps", "40", "--lr", "0.05", *every)).splitlines()
    doubts = [line for line in lines if line.endswith("now; no checkpoint is written while it is so")]
    kept = [int(line.split()[-1]) for line in lines if line.startswith("checkpoint ")]
    assert doubts[0].startswith("warning: step 1: the loss was 1 at first and is ")
    assert len(doubts) < min(kept) <= max(kept) == 40


def test_an_interrupted_run_keeps_nothing_that_exploded(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Far from the first loss, but not hopeless, and at a rate of 0 it stays so."""
    np.save(tmp_path / "x.npy", np.ones((100000, 2), np.float32))  # an epoch of many steps: its end saves too
    np.save(tmp_path / "y.npy", np.ones((100000, 3), np.float32))
    with Step.load(artifact) as step:
        step._state.set("parameter", "fc.bias", np.full(3, 300, np.float32))
        step.note = "gf-train seed 0 samples 100000 size 4 epoch 0 batch 0 loss 1"
        step.save_checkpoint(tmp_path / "run.ckpt")
    before = (tmp_path / "run.ckpt").read_bytes()
    with start_endless(artifact, options(tmp_path, "--checkpoint-every", "1000000000", "--lr", "0")) as process:
        process.send_signal(signal.SIGTERM)
        _, failed = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "with lr 0: the loss was 1 at first and is 2" in failed
    assert failed.endswith(" now; the checkpoint of step 0 is as it was; try a smaller --lr\n")
    assert (tmp_path / "run.ckpt").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("define", "text"),
    [
        ("STEEP", "gf-train: training diverged at step 1 with lr 0.05: the loss was 7.20879 at first and is MORE now,"
         " the gradient of 'fc.bias' is not finite; no checkpoint was written; try a smaller --lr\n"),
        ("SWOLLEN", "gf-train: gf_step_save: training diverged: optimizer state 'momentum_buffer/fc.weight' is not"
         " finite after step 1; nothing was written; load the last checkpoint and train with a smaller lr\n"),
    ],
)  # fmt: skip
def test_a_state_that_the_loss_does_not_betray(
    build: Build, trainer: Path, data: Data, tmp_path: Path, define: str, text: str
) -> None:
    folder = build(define)
    shutil.copy(trainer, folder)
    assert diverge(folder, *options(tmp_path, "--steps", "1")) == text
    assert not list(tmp_path.glob("*run.ckpt*"))


@pytest.mark.slow
def test_two_on_one_checkpoint(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Asked often, so that some ask while the first is moving its files: neither gets in, and the first goes on."""
    path = tmp_path / "run.ckpt"
    words = options(tmp_path, "--checkpoint-every", "1")
    busy = re.compile(
        rf"'{path}': (process \d+ is training with it|another process is writing it); give each its own checkpoint"
    )
    with start_endless(artifact, words) as process, Step.load(artifact) as step:
        assert process.stdout is not None
        said = []
        for _ in range(200):
            with pytest.raises(StepError) as caught:
                step.save_checkpoint(path)
            said.append(str(caught.value).removeprefix("save_checkpoint: "))
            process.stdout.readline()  # its pipe must not fill up
        for _ in range(20):
            said.append(run(artifact / "gf-train", *words, code=1).removeprefix("gf-train: --checkpoint ").rstrip())
        assert [text for text in said if not busy.fullmatch(text)] == []
        assert any(f"process {process.pid} is training with it" in text for text in said)
        assert process.poll() is None
        step.save_checkpoint(tmp_path / "other.ckpt")
        process.kill()
        process.communicate(timeout=60)
        step.save_checkpoint(path)  # a kill lets go
    assert not list(tmp_path.glob(".*"))


def test_a_checkpoint_is_let_go_at_every_end(artifact: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((100000, 2), np.float32))  # an epoch of many steps: its end writes a checkpoint
    np.save(tmp_path / "y.npy", np.ones((100000, 3), np.float32))
    run(artifact / "gf-train", *options(tmp_path, "--steps", "2"))
    run(artifact / "gf-train", *options(tmp_path, "--seed", "5"), code=2)
    with start_endless(artifact, options(tmp_path)) as process:
        assert (tmp_path / ".run.ckpt.tmp").read_text() == f"{process.pid}\n"
        process.terminate()
        process.communicate(timeout=60)
    assert sorted(os.listdir(tmp_path)) == ["linear_step", "run.ckpt", "run.ckpt.previous", "x.npy", "y.npy"]


@pytest.mark.parametrize("name", ["x.npy", "y.npy"])
def test_a_data_file_that_is_truncated(artifact: Path, tmp_path: Path, name: str) -> None:
    """Its pages are gone: the system sends a signal."""
    np.save(tmp_path / "x.npy", np.ones((100000, 2), np.float32))
    np.save(tmp_path / "y.npy", np.ones((100000, 3), np.float32))
    with start_endless(artifact, options(tmp_path, "--checkpoint-every", "1000000000")) as process:
        os.truncate(tmp_path / name, 4096)
        _, failed = process.communicate(timeout=60)
    assert (process.returncode, failed) == (1, f"gf-train: '{tmp_path / name}': {LOST}\n")
    assert not (tmp_path / "run.ckpt").exists()


def test_a_data_file_that_lost_less_than_a_page(artifact: Path, data: Data, tmp_path: Path) -> None:
    """What is cut off reads as zeros, and no signal comes: found before anything is kept."""
    with start_endless(artifact, options(tmp_path)) as process:
        os.truncate(tmp_path / "y.npy", 200)
        _, failed = process.communicate(timeout=60)
    assert (process.returncode, failed) == (1, f"gf-train: '{tmp_path / 'y.npy'}': {LOST}\n")
    assert all(np.isfinite(np.frombuffer(value, np.float32)).all() for name, value in
               tensors_of(tmp_path / "run.ckpt", artifact).items() if "count" not in name)  # fmt: skip


def test_other_signals_of_that_kind_are_none_of_ours(artifact: Path, data: Data, tmp_path: Path) -> None:
    with start_endless(artifact, options(tmp_path)) as process:
        process.send_signal(signal.SIGBUS)
        _, failed = process.communicate(timeout=60)
    assert (process.returncode, failed) == (-signal.SIGBUS, "")


def test_labels_that_are_overwritten(classifier: Path, tmp_path: Path) -> None:
    """They were checked at the start; a class that the model does not have would be an index into nowhere."""
    np.save(tmp_path / "x.npy", np.ones((6, 2), np.float32))
    np.save(tmp_path / "y.npy", np.zeros(6, np.int64))
    with start_endless(classifier, options(tmp_path)) as process:
        with open(tmp_path / "y.npy", "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write((10**9).to_bytes(8, "little"))
        _, failed = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "y.npy': label 1000000000 at index 5 is outside 0 to 2; the model has 3 classes" in failed


def test_a_checkpoint_of_an_older_version_is_continued(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Its note does not tell the first loss: the first of this process is taken."""
    with Step.load(artifact) as step:
        step.note = "gf-train seed 0 samples 10 size 4 epoch 0 batch 1"
        step.train(data[0][:4], data[1][:4])
        step.save_checkpoint(tmp_path / "run.ckpt")
    run(artifact / "gf-train", *options(tmp_path, "--steps", "2"))
    found = checkpoint.load(tmp_path / "run.ckpt", manifest.read_manifest(artifact)).progress
    assert re.fullmatch(r"gf-train seed 0 samples 10 size 4 epoch 0 batch 2 loss \d+\.\d+", found.note)
