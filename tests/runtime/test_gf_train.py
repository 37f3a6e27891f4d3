"""gf-train against the Python wrapper on the same library: the same bits, wherever it was interrupted."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gfcompile.runtime import checkpoint, manifest
from gfcompile.runtime.step import Step
from tests.missing import skip_for_want

from .conftest import SAMPLES, Data
from .trainer import link_trainer, options, order, run, start_endless, tensors_of


def train_in_python(step: Step, data: Data, epochs: int, seed: int, lr: float) -> list[float]:
    x, y = data
    losses = []
    for epoch in range(epochs):
        chosen = order(seed, epoch, len(x))
        losses += [step.train(x[part], y[part], lr) for part in (chosen[i : i + 4] for i in range(0, len(x), 4))]
    return losses


def test_it_trains_as_the_python_wrapper_does(artifact: Path, data: Data, tmp_path: Path) -> None:
    said = run(
        artifact / "gf-train", *options(tmp_path, "--epochs", "3", "--seed", "7", "--lr", "0.03", "--progress", "0")
    )
    with Step.load(artifact) as step:
        losses = train_in_python(step, data, epochs=3, seed=7, lr=0.03)
        step.save_checkpoint(tmp_path / "python.ckpt")
        step.load_checkpoint(tmp_path / "run.ckpt")
        assert (step.steps, step.lr) == (9, 0.03)
    printed = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
    assert np.float32(printed).tolist() == losses
    assert tensors_of(tmp_path / "run.ckpt", artifact) == tensors_of(tmp_path / "python.ckpt", artifact)
    assert "batches of 4, 3 an epoch, lr 0.03, seed 7, " in said


def test_an_interrupted_run_ends_in_the_same_bits(artifact: Path, data: Data, tmp_path: Path) -> None:
    program = artifact / "gf-train"
    whole = options(tmp_path, "--epochs", "4", "--seed", "3")
    run(program, *whole)
    expected = tensors_of(tmp_path / "run.ckpt", artifact)
    (tmp_path / "run.ckpt").unlink()
    (tmp_path / "run.ckpt.previous").unlink()
    for steps in (1, 3, 5):  # within an epoch, at its end, within the next
        run(program, *options(tmp_path, "--steps", str(steps), "--seed", "3"))
    said = run(program, *options(tmp_path, "--epochs", "4"))
    assert f"continuing from {tmp_path / 'run.ckpt'}: step 5, epoch 2, batch 2" in said
    assert tensors_of(tmp_path / "run.ckpt", artifact) == expected
    assert "done after 12 steps" in run(program, *whole), "it trained on though all was done"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_a_termination_saves_and_ends(sent: signal.Signals, artifact: Path, data: Data, tmp_path: Path) -> None:
    with start_endless(artifact, options(tmp_path)) as process:
        process.send_signal(sent)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + sent
    steps = int(rest.split("interrupted after ")[1].split()[0])
    assert checkpoint.load(tmp_path / "run.ckpt", manifest.read_manifest(artifact)).progress.steps == steps >= 10


def test_under_nohup_it_trains_on(artifact: Path, data: Data, tmp_path: Path) -> None:
    with start_endless(artifact, options(tmp_path), hang_up=signal.SIG_IGN) as process:
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        for _ in range(100):
            assert process.stdout.readline().startswith(("step ", "epoch ", "checkpoint "))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_lost_connection_saves_and_ends(artifact: Path, data: Data, tmp_path: Path) -> None:
    """ssh without a terminal sends no signal when it ends: nobody reads what is printed."""
    command = [artifact / "gf-train", *map(str, options(tmp_path, "--epochs", "1000000000", "--progress", "0"))]
    command += ["--checkpoint-every", "1000000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("step 2 "):  # within the first epoch, whose end saves too
            pass
        process.stdout.close()
        assert process.wait(60) == 128 + signal.SIGPIPE
    assert checkpoint.load(tmp_path / "run.ckpt", manifest.read_manifest(artifact)).progress.steps >= 2


def test_what_is_trained_is_always_evaluated(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Also where --steps ends within an epoch, and where a run was stopped before it could evaluate."""
    x, y = data
    evaluation = ["--eval-data", str(tmp_path / "x.npy"), "--eval-labels", str(tmp_path / "y.npy")]
    for words, when in ((["--steps", "2"], "step 2"), (["--epochs", "1"], "epoch 1"), (["--epochs", "1"], "epoch 1")):
        said = run(artifact / "gf-train", *options(tmp_path, *words, *evaluation))
        with Step.load(artifact) as step:
            step.load_checkpoint(tmp_path / "run.ckpt")
            padded = np.concatenate([x, x[:2]])
            found = np.concatenate([step.predict(padded[i : i + 4]) for i in range(0, SAMPLES, 4)])[:SAMPLES]
        assert said.count("mean squared error") == 1
        said_error = float(said.split(f"{when}: mean squared error ")[1].split()[0])
        assert said_error == pytest.approx(float(np.mean((found - y) ** 2)), rel=1e-4)
        assert ("mean loss" in said) == ("of its last 1 batches" in said)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(artifact: Path, data: Data, tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    run(artifact / "gf-train", *options(tmp_path, "--epochs", "2"))
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    said = run(artifact / "gf-train", *options(tmp_path, "--epochs", "2"))
    assert f"warning: '{path}': its content does not match its checksum; use another copy; continuing from" in said
    assert f"continuing from {path}: step 3, epoch 2, batch 0" in said
    assert checkpoint.load(path, manifest.read_manifest(artifact)).progress.steps == 6


def test_a_damaged_checkpoint_takes_the_place_of_no_whole_one(artifact: Path, data: Data, tmp_path: Path) -> None:
    """The one before stays, through the next save too."""
    path, before = tmp_path / "run.ckpt", tmp_path / "run.ckpt.previous"
    run(artifact / "gf-train", *options(tmp_path, "--epochs", "2"))
    whole = before.read_bytes()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    run(artifact / "gf-train", *options(tmp_path, "--steps", "4"))
    assert before.read_bytes() == whole
    assert checkpoint.load(path, manifest.read_manifest(artifact)).progress.steps == 4


def test_a_checkpoint_of_python_is_continued(artifact: Path, data: Data, tmp_path: Path) -> None:
    with Step.load(artifact) as step:
        step.train(data[0][:4], data[1][:4])
        step.save_checkpoint(tmp_path / "run.ckpt")
    said = run(artifact / "gf-train", *options(tmp_path, "--steps", "2"))
    assert "step 1, not written by gf-train: it begins with epoch 1" in said
    assert "done after 2 steps" in said


def test_classes_from_idx_files(classifier: Path, tmp_path: Path) -> None:
    """A folder as MNIST comes in: bytes, divided by 255; accuracy is counted with the trained weights."""
    folder = classifier
    drawn = np.random.default_rng(6)
    x, y = drawn.integers(0, 256, (SAMPLES, 2), dtype=np.uint8), drawn.integers(0, 3, SAMPLES, dtype=np.uint8)
    for part in ("train", "t10k"):
        for name, values in (("images-idx3", x), ("labels-idx1", y)):
            header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(header + values.tobytes())
    said = run(
        folder / "gf-train", "--data", tmp_path, "--checkpoint", tmp_path / "run.ckpt", "--mean", "0.25", "--std", "2"
    )
    with Step.load(folder) as step:
        scaled = ((x / 255.0 - 0.25) / 2).astype(np.float32)
        train_in_python(step, (scaled, y.astype(np.int64)), epochs=1, seed=0, lr=0.05)
        step.save_checkpoint(tmp_path / "python.ckpt")
        logits = np.concatenate([step.predict(scaled[i : i + 4]) for i in range(0, SAMPLES, 4)])
    found, expected = (
        {name: np.array(value) for name, value in checkpoint.load(path, manifest.read_manifest(folder)).tensors.items()}
        for path in (tmp_path / "run.ckpt", tmp_path / "python.ckpt")
    )
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert f"accuracy {np.mean(logits.argmax(1) == y):.4f} on {SAMPLES} samples" in said


ERRORS: list[tuple[list[str], int, str]] = [
    ([], 2, "--data: is missing; see gf-train --help"),
    (["--data", "x.npy"], 2, "--labels: is missing; --data FILE needs the targets of its samples"),
    (["--data", "none"], 1, "--data 'none': No such file or directory; check the path"),
    (["--data", "."], 1, "'.': has no train-images-idx3-ubyte; give a folder of idx files, or --data FILE with"
     " --labels FILE"),
    (["--data", "packed"], 1, "'packed/train-images-idx3-ubyte.gz': is compressed; unpack it with: gunzip -k"
     " 'packed/train-images-idx3-ubyte.gz'"),
    (["--data", "x.npy", "--labels", "text"], 1, "'text': neither an .npy nor an idx file; write one with numpy.save"),
    (["--data", "x.npy", "--labels", "short.npy"], 1, "'short.npy' has 9 targets and 'x.npy' 10 samples; give files"
     " that belong together"),
    (["--data", "x.npy", "--labels", "x.npy"], 1, "'x.npy': targets of 2, but the step takes 3 for each sample; give"
     " targets of that shape"),
    (["--data", "y.npy", "--labels", "y.npy"], 1, "'y.npy': samples of 3, but the step takes 2; give samples of that"
     " shape, or images"),
    (["--data", "x.npy", "--labels", "cut.npy"], 1, "'cut.npy': holds 119 bytes of values, its shape 10x3 says 120;"
     " it is truncated or damaged, use another copy"),
    (["--data", "x.npy", "--labels", "complex.npy"], 1, "'complex.npy': holds '<c8' values; save it as uint8, int32,"
     " int64, float32 or float64, little-endian"),
    (["--data", "x.npy", "--labels", "objects.npy"], 1, "'objects.npy': holds '|O' values; save it as uint8, int32,"
     " int64, float32 or float64, little-endian"),
    (["--data", "x.npy", "--labels", "y.npy", "--checkpoint", "none/run.ckpt"], 1, "--checkpoint 'none/run.ckpt'"
     " cannot be written: No such file or directory; an older checkpoint there is untouched; choose another place"),
    (["--data", "x.npy", "--labels", "fortran.npy"], 1, "'fortran.npy': lies in Fortran order; save"
     " numpy.ascontiguousarray of it"),
    (["--data", "nan.npy", "--labels", "y.npy"], 1, "'nan.npy': sample 3 holds NaN or Inf; repair the sample or leave"
     " it out"),
    (["--data", "x.npy", "--labels", "large.npy"], 1, "'large.npy': target 0 is 1e+300, the largest that can be taken"
     " is 3.40282e+38; repair it or leave the sample out"),
    (["--data", "x.npy", "--labels", "escape.npy"], 1, "'escape.npy': holds '?[31m' values; save it as uint8, int32,"
     " int64, float32 or float64, little-endian"),
    (["--data", "x.npy", "--labels", "y.npy", "--threads", "4294967297"], 1, "2147483647 threads asked for; the most is"
     " 256"),
    (["--data", "x.npy", "--labels", "y.npy", "--lr", "fast"], 2, "--lr 'fast': must be a finite number, 0 or more"),
    (["--data", "x.npy", "--labels", "y.npy", "--lr", "1e300"], 2, "--lr '1e300': is more than a float32 holds; give"
     " 3.4e38 or less"),
    (["--data", "x.npy", "--labels", "y.npy", "--epochs", "0"], 2, "--epochs '0': must be a whole number, 1 or more"),
    (["--data", "x.npy", "--labels", "y.npy", "--mean", "1,,2"], 2, "--mean '1,,2': must be numbers separated by"
     " commas"),
    (["--data", "x.npy", "--labels", "y.npy", "--mean", "1,2,3"], 2, "--mean or --std: 3 values, but the step takes 2"
     " channels; give one, or one per channel"),
    (["--data", "x.npy", "--labels", "y.npy", "--std", "0"], 2, "--std: must be more than 0"),
    (["--data", "x.npy", "--labels", "y.npy", "--eval-data", "x.npy"], 2, "--eval-data and --eval-labels: give both,"
     " or none"),
    (["--data", "x.npy", "--labels", "y.npy", "--checkpoint-every", "2"], 2, "--checkpoint-every: goes with"
     " --checkpoint FILE"),
    (["--fast"], 2, "'--fast' is not an option, or lacks its value; see gf-train --help"),
    (["train"], 2, "'train' is not an option; see gf-train --help"),
    (["--selftest"], 1, "'linear_step/selftest.safetensors': cannot be read: No such file or directory; check the"
     " path"),
    (["--data", "x.npy", "--labels", "y.npy", "--checkpoint", "other.ckpt"], 1, "'other.ckpt': not a whole safetensors"
     " file: it has no header; use another copy"),
    (["--data", "x.npy", "--labels", "y.npy", "--lr", "1e30"], 1, "training diverged at step 2 with lr 1e+30:"
     " the loss was 7.20879 at first and is inf now; no checkpoint was written; try a smaller --lr"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "text"), ERRORS, ids=[error[2][:40] for error in ERRORS])
def test_errors(artifact: Path, data: Data, tmp_path: Path, words: list[str], code: int, text: str) -> None:
    x, y = data
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "train-images-idx3-ubyte.gz").write_bytes(b"")
    (tmp_path / "text").write_text("some words")
    (tmp_path / "other.ckpt").write_bytes(b"")
    np.save(tmp_path / "short.npy", y[:9])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "y.npy").read_bytes()[:-1])
    np.save(tmp_path / "complex.npy", y.astype(np.complex64))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(y))
    np.save(tmp_path / "large.npy", np.full((SAMPLES, 3), 1e300))
    (tmp_path / "escape.npy").write_bytes((tmp_path / "y.npy").read_bytes().replace(b"<f4", b"\x1b[31m"))
    np.save(tmp_path / "nan.npy", np.where(np.arange(SAMPLES)[:, None] == 3, np.float32("nan"), x))
    done = subprocess.run(
        [artifact / "gf-train", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.replace(f"{tmp_path}/", "") == f"gf-train: {text}\n"


def test_labels_out_of_range_and_other_data(classifier: Path, tmp_path: Path) -> None:
    program = classifier / "gf-train"
    np.save(tmp_path / "x.npy", np.ones((6, 2), np.float32))
    np.save(tmp_path / "y.npy", np.array([0, 1, 2, 3, 0, 0]))
    assert "label 3 at index 3 is outside 0 to 2; the model has 3 classes, so renumber the labels" in run(
        program, *options(tmp_path), code=1
    )
    np.save(tmp_path / "y.npy", np.zeros(6, np.float32))
    assert "holds fractions, but loss 'cross_entropy' takes class numbers; save it as int64" in run(
        program, *options(tmp_path), code=1
    )
    np.save(tmp_path / "y.npy", np.zeros(6, np.int32))
    run(program, *options(tmp_path))
    assert "was made with --seed 0; leave --seed out, or begin another checkpoint" in run(
        program, *options(tmp_path, "--seed", "1"), code=2
    )
    np.save(tmp_path / "x.npy", np.ones((5, 2), np.float32))
    np.save(tmp_path / "y.npy", np.zeros(5, np.int32))
    assert "was made with 6 samples" in run(program, *options(tmp_path), code=1)


@pytest.mark.slow
def test_under_the_sanitizers(artifact: Path, data: Data, tmp_path: Path) -> None:
    """Training, resuming, evaluation, and files that are cut off anywhere."""
    try:
        program = link_trainer(artifact, "-fsanitize=address,undefined", "-fno-sanitize-recover")
    except AssertionError as error:
        if "cannot find" in str(error):
            skip_for_want("the sanitizer's library is not installed; install the compiler's sanitizer libraries")
        raise
    whole = (tmp_path / "y.npy").read_bytes()
    evaluation = ["--eval-data", tmp_path / "x.npy", "--eval-labels", tmp_path / "y.npy"]
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # it ends with its files open
    for cut in (None, 0, 5, 9, 10, 60, 127, 128, 200):
        (tmp_path / "y.npy").write_bytes(whole[:cut])
        command = [program, *map(str, options(tmp_path, "--epochs", "2", "--steps", "5", *evaluation))]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == (0 if cut is None else 1), done.stdout + done.stderr
        assert "Sanitizer" not in done.stderr
        assert "runtime error" not in done.stderr


def test_help_and_version(artifact: Path) -> None:
    assert "usage: gf-train --data DATA" in run(artifact / "gf-train", "--help")
    assert run(artifact / "gf-train", "--version").startswith(
        "gf-train of linear_step, compiled by gfcompile 0 for test"
    )
