"""The artifact on its own: no torch, no tvm; bits that repeat; a report and files that can be trusted."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gfcompile
from gfcompile.runtime.errors import StepError
from tests.end_to_end import standalone
from tests.end_to_end.conftest import SGD, Artifact, random_batch
from tests.end_to_end.eager import Eager
from tests.tolerances import EXACT_GRADIENT, LOGITS, LOSS, assert_near

pytestmark = pytest.mark.slow

Arrays = dict[str, np.ndarray]


def run_alone(artifact: Artifact, folder: Path, steps: int, threads: int = 2, **options: Path) -> Arrays:
    """Train in a process that can import numpy only."""
    out = folder / f"run{len(list(folder.glob('*.npz')))}.npz"
    command = [sys.executable, standalone.__file__, str(artifact.folder), str(out), str(steps), str(threads)]
    for name, path in options.items():
        command += [f"--{name}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(out) as arrays:
        return dict(arrays)


def assert_same_bits(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    different = [name for name in expected if found[name].tobytes() != expected[name].tobytes()]
    assert not different


def test_resuming_changes_no_bit(artifact: Artifact, tmp_path: Path) -> None:
    """5 steps, a checkpoint, 5 more in a new process: as 10 at once, momentum and batch norm statistics included."""
    at_once = run_alone(artifact, tmp_path, 10, save=tmp_path / "whole.safetensors")
    first = run_alone(artifact, tmp_path, 5, save=tmp_path / "half.safetensors")
    second = run_alone(artifact, tmp_path, 5, resume=tmp_path / "half.safetensors", save=tmp_path / "end.safetensors")
    joined = np.concatenate([first["losses"], second["losses"]])
    assert_same_bits({**second, "losses": joined}, at_once)
    assert second["steps"] == 10
    assert first["logits"].tobytes() != second["logits"].tobytes(), "the second half trained nothing"
    assert (tmp_path / "end.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    without = run_alone(artifact, tmp_path, 5)
    assert_same_bits(without, first)


def test_every_run_gives_the_same_bits_on_one_thread_and_on_two(artifact: Artifact, tmp_path: Path) -> None:
    first, *others = (run_alone(artifact, tmp_path, 8, threads) for threads in (1, 1, 2, 2))
    for other in others:
        assert_same_bits(other, first)


def test_alone_equals_the_python_api(artifact: Artifact, tmp_path: Path) -> None:
    alone = run_alone(artifact, tmp_path, 3)
    with gfcompile.load(artifact.folder, threads=2) as step:
        losses = [step.train(*standalone.batch(index)) for index in range(3)]
        state = {f"state/{name}": tensor.numpy() for name, tensor in step.state_dict().items()}
    assert losses == alone["losses"].tolist()
    assert_same_bits(state, {name: array for name, array in alone.items() if name.startswith("state/")})


def test_state_dict_fits_the_untouched_model(artifact: Artifact) -> None:
    step = gfcompile.load(artifact.folder)
    for index in range(5):
        step.train(*standalone.batch(index))
    state, start = step.state_dict(), artifact.model.state_dict()
    assert list(state) == list(start)
    changing = set(step.manifest["gradients"])
    if artifact.batchnorm == "train":
        changing |= {name for name in start if "running_" in name or "num_batches" in name}
    for name in start:
        assert state[name].dtype == start[name].dtype, name
        assert torch.equal(state[name], start[name]) == (name not in changing), name
    model = copy.deepcopy(artifact.model).eval()
    model.load_state_dict(state, strict=True)
    x, _ = random_batch((4, 3, 64, 64), seed=7)
    with torch.no_grad():
        assert_near(step.predict(x), model(x), LOGITS, "logits")


def test_smaller_batch_is_the_mean_over_its_samples(eval_artifact: Artifact) -> None:
    """The padding weighs nothing in the loss, in the classifier's gradients, in the update, in predict."""
    x, y = random_batch((4, 3, 64, 64), seed=3)
    for count in (1, 3):
        step = gfcompile.load(eval_artifact.folder)
        patches = dict.fromkeys(step.filtered_layers, 2)
        eager = Eager(eval_artifact.model, step.manifest["gradients"], lr=0.05, patches=patches, **SGD)
        few = x[:count], y[:count]
        loss, expected = eager.gradients(*few)
        found = step.gradients(*few)
        for name, wanted in expected.items():
            assert_near(found[name], wanted, EXACT_GRADIENT, f"{name}, {count} samples")
        assert step.train(*few) == pytest.approx(loss, rel=LOSS)
        eager.train(*few)
        assert step.predict(x[:count]).shape == (count, standalone.CLASSES)
        assert_near(step.predict(x[:count]), eager.predict(x[:count]), LOGITS, f"logits, {count} samples")


def test_smaller_batch_is_refused_where_statistics_would_count_the_padding(train_artifact: Artifact) -> None:
    step = gfcompile.load(train_artifact.folder)
    x, y = random_batch((3, 3, 64, 64), seed=3)
    with pytest.raises(StepError) as caught:
        step.train(x, y)
    assert str(caught.value) == (
        "train: 3 samples, but the compiled batch is 4 and batchnorm 'train' would count the padding in its"
        " statistics; pass 4 samples, or recompile with --batchnorm eval or --batch 3"
    )


def test_report_holds_what_was_promised(eval_artifact: Artifact) -> None:
    step = gfcompile.load(eval_artifact.folder)
    report = json.loads((eval_artifact.folder / "report.json").read_text())
    assert {"plan", "layers", "memory", "refusals"} <= report.keys()
    assert report["refusals"] == []
    assert report["plan"]["filtered"] == step.filtered_layers
    assert step.filtered_layers == ["layer4.0.conv2", "layer4.1.conv1", "layer4.1.conv2"]
    memory = report["memory"]
    assert 0 < memory["saved_bytes"] < memory["exact_saved_bytes"]
    assert memory["saved_bytes"] == sum(row["bytes"] for row in memory["saved"])
    assert memory["arena_bytes"] >= memory["saved_bytes"]
    rows = {row["name"]: row for row in report["layers"]}
    last = rows["layer4.1.conv2"]  # 64 channels on 2x2, batch 4: one patch is the whole map
    assert (last["filtered"], last["r"]) == (True, 2)
    assert last["kept_bytes"]["exact"] == 4 * 64 * 2 * 2 * 4
    assert last["kept_bytes"]["filtered"] == 4 * 64 * 4
    assert last["flops"]["exact"]["forward"] == 2 * (4 * 2 * 2) * 64 * 64 * 9
    assert not rows["conv1"]["filtered"]
    page = (eval_artifact.folder / "report.md").read_text()
    for name in step.filtered_layers:
        assert name in page


def test_folder_holds_what_was_promised(eval_artifact: Artifact) -> None:
    folder = eval_artifact.folder
    for name in ("__init__.py", "manifest.json", "libstep.so", "weights.safetensors", "gf_step.h", "report.md"):
        assert (folder / name).stat().st_size > 0, name
    graphs = [path for path in (folder / "graphs").rglob("*") if path.is_file()]
    assert graphs
    assert all(path.stat().st_size > 0 for path in graphs)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"plan", "versions", "files", "inputs", "outputs", "state_dict", "batchnorm"} <= manifest.keys()
    assert manifest["files"].keys() >= {"libstep.so", "weights.safetensors"}
    needed = subprocess.run(["ldd", folder / "libstep.so"], capture_output=True, text=True, check=True).stdout
    assert "tvm" not in needed
    assert "torch" not in needed


def error_text(folder: Path) -> str:
    with pytest.raises(StepError) as caught:
        gfcompile.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["weights.safetensors", "constants.safetensors", "libstep.so"])
def test_a_changed_file_is_refused(eval_artifact: Artifact, name: str, tmp_path: Path) -> None:
    path = eval_artifact.copy_to(tmp_path) / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert error_text(path.parent) == (
        f"'{path}': its content is not what was compiled (truncated or changed); recompile, or copy the artifact again"
    )


@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_truncated_library_is_refused(eval_artifact: Artifact, kept: float, tmp_path: Path) -> None:
    path = eval_artifact.copy_to(tmp_path) / "libstep.so"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    assert error_text(path.parent) == (
        f"'{path}': its content is not what was compiled (truncated or changed); recompile, or copy the artifact again"
    )


def test_a_missing_file_is_refused(eval_artifact: Artifact, tmp_path: Path) -> None:
    path = eval_artifact.copy_to(tmp_path) / "weights.safetensors"
    path.unlink()
    assert error_text(path.parent) == f"'{path}': is missing; recompile, or copy the artifact again"


def test_a_folder_without_an_artifact_is_refused(tmp_path: Path) -> None:
    assert error_text(tmp_path) == f"'{tmp_path}': no manifest.json there; pass the folder that gfcompile wrote"


def test_a_moved_artifact_still_works(eval_artifact: Artifact, tmp_path: Path) -> None:
    moved = Artifact(eval_artifact.copy_to(tmp_path), eval_artifact.model, eval_artifact.batchnorm)
    assert_same_bits(run_alone(moved, tmp_path, 2), run_alone(eval_artifact, tmp_path, 2))


def test_checkpoint_of_the_other_policy_is_refused(
    eval_artifact: Artifact, train_artifact: Artifact, tmp_path: Path
) -> None:
    """The two policies train the same parameters, but only one keeps statistics."""
    path = tmp_path / "checkpoint.safetensors"
    gfcompile.load(train_artifact.folder).save_checkpoint(path)
    step = gfcompile.load(eval_artifact.folder)
    before = step.state_dict()
    with pytest.raises(StepError) as caught:
        step.load_checkpoint(path)
    assert str(caught.value) == (
        f"load_checkpoint: '{path}': has an unexpected tensor 'buffer/bn1.num_batches_tracked';"
        " compile with the same optimizer and batchnorm"
    )
    after = step.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
