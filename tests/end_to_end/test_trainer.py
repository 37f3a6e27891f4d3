"""Training without Python: gf-train and the C and C++ examples on compiled steps, and the way of the weights back."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.cli import main
from gfcompile.runtime import tensorfile
from tests.end_to_end.conftest import Artifact, small_resnet
from tests.manifests import list_anew
from tests.missing import skip_for_want
from tests.runtime.c_interface import assert_described
from tests.runtime.trainer import order, run

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
SAMPLES = 10  # two batches of 4, and one of 2


@pytest.fixture(scope="module")
def fashion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first of the shipped images, unpacked: idx files as gf-train wants them."""
    folder = tmp_path_factory.mktemp("fashion")
    for part in ("train", "t10k"):
        for name, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            packed = (EXAMPLES / "fashion" / "data" / f"{part}-{name}-ubyte.gz").read_bytes()
            content = bytearray(gzip.decompress(packed)[: header + SAMPLES * size])
            content[4:8] = SAMPLES.to_bytes(4, "big")
            (folder / f"{part}-{name}-ubyte").write_bytes(content)
    return folder


def images_of(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """As the help of gf-train says: bytes over 255, one channel repeated, the nearest pixel."""
    pixels = np.frombuffer((folder / f"{part}-images-idx3-ubyte").read_bytes(), np.uint8, offset=16)
    labels = np.frombuffer((folder / f"{part}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    nearest = np.arange(64) * 28 // 64
    resized = pixels.reshape(-1, 28, 28)[:, nearest][:, :, nearest].astype(np.float64)
    scaled = (np.repeat(resized[:, None], 3, axis=1) / 255 - 0.286) / 0.353
    return scaled.astype(np.float32), labels.astype(np.int64)


def test_real_images_and_the_way_back(eval_artifact: Artifact, fashion: Path, tmp_path: Path) -> None:
    """gf-train on 28x28 grey images for a network of 3x64x64: as Python on the same batches; then export."""
    folder = eval_artifact.copy_to(tmp_path)
    options = ["--data", fashion, "--epochs", "2", "--lr", "0.02", "--seed", "5", "--mean", "0.286", "--std", "0.353"]
    said = run(folder / "gf-train", *options, "--checkpoint", tmp_path / "run.ckpt", "--progress", "0")
    assert "training data: 10 samples of 28x28, resized (nearest pixel) to 64x64, the one channel repeated to 3" in said
    x, y = images_of(fashion, "train")
    with gfcompile.load(folder) as step:
        losses = []
        for epoch in range(2):
            chosen = order(5, epoch, SAMPLES)
            losses += [step.train(x[part], y[part], 0.02) for part in (chosen[i : i + 4] for i in (0, 4, 8))]
        printed = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
        np.testing.assert_allclose(printed, losses, rtol=1e-4)
        step.load_checkpoint(tmp_path / "run.ckpt")
        assert (step.steps, step.lr) == (6, 0.02)
        expected = step.state_dict()
        test_x, test_y = images_of(fashion, "t10k")
        logits = np.concatenate([np.asarray(step.predict(test_x[i : i + 4])) for i in (0, 4, 8)])
    assert f"epoch 2: accuracy {np.mean(logits.argmax(1) == test_y):.4f} on 10 samples" in said

    out = tmp_path / "out.safetensors"
    assert main(["export", str(tmp_path / "run.ckpt"), "--state-dict", str(out), "--quiet"]) == 0
    state = {name: torch.from_numpy(np.array(value)) for name, value in tensorfile.read(out).tensors.items()}
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert not torch.equal(state["fc.weight"], eval_artifact.model.state_dict()["fc.weight"])
    small_resnet().load_state_dict(state, strict=True)


def test_images_stored_channels_last(eval_artifact: Artifact, tmp_path: Path) -> None:
    """Wide ones, as a camera gives them: rows stay rows."""
    folder = eval_artifact.copy_to(tmp_path)
    random = np.random.default_rng(0)
    images, y = random.normal(size=(SAMPLES, 20, 24, 3)).astype(np.float32), random.integers(0, 10, SAMPLES)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", y)
    data = ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy", "--checkpoint", tmp_path / "run.ckpt"]
    said = run(folder / "gf-train", *data, "--epochs", "1", "--lr", "0.02", "--seed", "5", "--progress", "0")
    assert "10 samples of 20x24x3, resized (nearest pixel) to 64x64" in said
    rows, columns = np.arange(64) * 20 // 64, np.arange(64) * 24 // 64
    x = np.ascontiguousarray(images[:, rows][:, :, columns].transpose(0, 3, 1, 2))
    chosen = order(5, 0, SAMPLES)
    with gfcompile.load(folder) as step:
        losses = [step.train(x[part], y[part], 0.02) for part in (chosen[i : i + 4] for i in (0, 4, 8))]
    printed = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
    np.testing.assert_allclose(printed, losses, rtol=1e-6)


def test_a_library_describes_itself_as_its_manifest_does(artifact: Artifact) -> None:
    assert_described(artifact.folder)


def test_labels_a_pixel_with_dropout(tmp_path: Path) -> None:
    """Segmentation: targets of every pixel, some ignored, dropouts drawn by the step's number: the bits of Python."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 5, 1))
    options: dict[str, Any] = {"layers": 2, "loss": "cross_entropy:ignore_index=255", "dropout": True}
    random = np.random.default_rng(2)
    x, y = random.normal(size=(SAMPLES, 3, 8, 8)).astype(np.float32), random.integers(0, 5, (SAMPLES, 8, 8))
    y[random.random(y.shape) < 0.2] = 255
    for name, values in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", values)
    data = ["--data", tmp_path / "x.npy", "--labels", tmp_path / "y.npy"]
    data += ["--eval-data", tmp_path / "x.npy", "--eval-labels", tmp_path / "y.npy"]
    with gfcompile.compile(model, torch.zeros(4, 3, 8, 8), lr=0.1, out=tmp_path / "pixels_step", **options) as step:
        said = run(tmp_path / "pixels_step" / "gf-train", *data, "--checkpoint", tmp_path / "run.ckpt")
        chosen = order(0, 0, SAMPLES)
        for part in (chosen[i : i + 4] for i in (0, 4, 8)):
            step.train(x[part], y[part])
        state = step.state_dict()
        logits = np.concatenate([np.asarray(step.predict(x[i : i + 4])) for i in (0, 4, 8)])
        step.load_checkpoint(tmp_path / "run.ckpt")
        assert all(torch.equal(tensor, state[name]) for name, tensor in step.state_dict().items())
    right = (logits.argmax(1) == y)[y != 255]
    assert f"epoch 1: accuracy {right.mean():.4f} on 10 samples" in said


def test_exports_need_no_library(eval_artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An artifact of another machine: what cannot be loaded here is not loaded."""
    folder, path = eval_artifact.copy_to(tmp_path), tmp_path / "elsewhere" / "run.ckpt"
    path.parent.mkdir()
    with gfcompile.load(folder) as step:
        step.save_checkpoint(path)
        step.save_checkpoint(path)
    (folder / "libstep.so").unlink()  # it is mapped: what is written into it would end this process at its next fork
    (folder / "libstep.so").write_bytes(b"of another machine")
    out = tmp_path / "out.safetensors"
    assert main(["export", str(path), "--state-dict", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{path}: its artifact 'small_step' is not beside it; give --artifact FOLDER" in said
    path.write_bytes(b"damaged")
    assert main(["export", str(path), "--artifact", str(folder), "--state-dict", str(out)]) == 0
    assert "gfcompile: warning: load_checkpoint: " in capsys.readouterr().err
    found = tensorfile.read(out).tensors
    for name, value in eval_artifact.model.state_dict().items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)
    for words, text in (
        ([str(folder), "--artifact", str(folder)], "is an artifact already; name a checkpoint before it"),
        ([str(path), "--checkpoint", str(path)], "is a checkpoint already; name an artifact before it"),
    ):
        assert main(["export", *words, "--state-dict", str(tmp_path / "b")]) == 2
        assert text in capsys.readouterr().err


def test_the_self_test(artifact: Artifact, tmp_path: Path) -> None:
    """It passes on the step as compiled, and fails where some weights of one channel are others."""
    folder = artifact.copy_to(tmp_path)
    said = run(folder / "gf-train", "--selftest")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert said.splitlines()[-1] == f"PASS: {len(manifest['gradients']) + 1} checks"
    assert (folder / "selftest.safetensors").stat().st_size < 250_000
    values = {name: np.array(value) for name, value in tensorfile.read(folder / "weights.safetensors").tensors.items()}
    values["layer4.1.conv1.weight"][3, ::2] *= 1.5
    tensorfile.write(folder / "weights.safetensors", values)
    list_anew(folder, "weights.safetensors")
    done = subprocess.run([folder / "gf-train", "--selftest"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAIL layer4.1.conv2.weight " in done.stdout
    assert "values are not what PyTorch computed; do not train here" in done.stdout.splitlines()[-1]
    selftest = (folder / "selftest.safetensors").read_bytes()
    (folder / "selftest.safetensors").write_bytes(selftest[:-1] + b"!")
    assert "selftest.safetensors': its content is not what was compiled" in run(
        folder / "gf-train", "--selftest", code=1
    )
    (folder / "selftest.safetensors").unlink()
    gfcompile.load(folder).close()  # a copy without it is whole: only the self-test reads it


@pytest.mark.parametrize(
    ("compiler", "standard", "source"), [("cc", "c11", "c/train.c"), ("c++", "c++17", "cpp/train.cpp")]
)
def test_examples(eval_artifact: Artifact, tmp_path: Path, compiler: str, standard: str, source: str) -> None:
    """Built without warnings as their heads say; they train, and continue."""
    if shutil.which(compiler) is None:
        skip_for_want(f"{compiler} is not installed; install a compiler")
    eval_artifact.copy_to(tmp_path)
    command = [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-I", "small_step", EXAMPLES / source]
    command += ["-L", "small_step", "-l:libstep.so", "-Wl,-rpath,$ORIGIN/small_step", "-o", "train"]
    subprocess.run(command, cwd=tmp_path, check=True)
    first, second = (
        subprocess.run(
            [tmp_path / "train", "small_step", "run.ckpt", "12"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert "after 12 steps" in first
    assert "continuing at step 12" in second
    assert "after 24 steps" in second
    with gfcompile.load(tmp_path / "small_step") as step:
        step.load_checkpoint(tmp_path / "run.ckpt")
        assert step.steps == 24
        printed = float(second.splitlines()[-1].split()[-1])
        assert f"{second.splitlines()[-1].split('[')[0]}" == step.manifest["gradients"][-1]
        assert printed == pytest.approx(float(step.state_dict()[step.manifest["gradients"][-1]].flatten()[0]), rel=1e-4)
    refused = subprocess.run([tmp_path / "train", "none", "a", "1"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "'none': no manifest.json there; pass the folder that gfcompile wrote" in refused.stderr
