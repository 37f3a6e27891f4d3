"""The trained model out of an artifact: compile, train, export, and run it in onnxruntime."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

import gfcompile
from gfcompile.api import CompiledStep
from gfcompile.cli import main
from gfcompile.compiler import compile_job
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.onnx.write_back import STATE_KEY, fill
from gfcompile.job import Job
from gfcompile.settings.schema import Request
from gfcompile.targets import find_target
from tests.export.harness import run
from tests.lean import lean, lean_compile
from tests.manifests import edit_manifest, list_anew, manifest_of
from tests.models.zoo import INPUTS, ZOO
from tests.tolerances import LOGITS, assert_near

NAME = "conv_head"  # batch norms: their statistics are trained too
Capture = pytest.CaptureFixture[str]


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(INPUTS[NAME], generator=generator), torch.randint(0, 5, INPUTS[NAME][:1], generator=generator)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a checkpoint of three steps beside it."""
    folder = tmp_path_factory.mktemp("export") / "net_step"
    step = lean_compile(ZOO[NAME](), batch(0)[0], layers=1, batchnorm="train", lr=0.1, out=folder)
    with step:
        for seed in range(3):
            step.train(*batch(seed))
        step.save_checkpoint(folder.parent / "trained.ckpt")
    return folder


@pytest.fixture
def trained(artifact: Path) -> Iterator[CompiledStep]:
    with gfcompile.load(artifact) as step:
        step.load_checkpoint(artifact.parent / "trained.ckpt")
        yield step


@pytest.mark.slow
def test_the_exported_model_predicts_as_the_step_does(trained: CompiledStep, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    trained.export_onnx(path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    x, _ = batch(9)
    (found,) = run(model, [x])
    assert_near(found, trained.predict(x), LOGITS, "logits")
    untrained = run(fill((trained._folder / "model.onnx").read_bytes(), ZOO[NAME]().state_dict()), [x])[0]
    assert np.abs(found - untrained).max() > 10 * LOGITS  # three steps changed something


def test_the_exported_model_has_the_models_names(trained: CompiledStep, tmp_path: Path) -> None:
    trained.export_onnx(tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    assert [door.name for door in model.graph.input] == ["input"]
    assert [door.name for door in model.graph.output] == ["output"]
    state = trained.state_dict()
    weights = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name in state}
    assert weights.keys() == {name for name in state if not name.endswith("num_batches_tracked")}
    for name, tensor in weights.items():
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), state[name].numpy())
    assert {node.domain for node in model.graph.node} == {""}
    assert {"Conv", "BatchNormalization", "Relu"} <= {node.op_type for node in model.graph.node}
    assert not model.functions
    assert not model.metadata_props


def test_the_artifact_holds_the_model_without_weights(artifact: Path) -> None:
    skeleton = onnx.load(artifact / "model.onnx")
    (entry,) = skeleton.metadata_props
    assert entry.key == STATE_KEY
    names = json.loads(entry.value)
    for tensor in skeleton.graph.initializer:
        assert (tensor.name in names) == (not tensor.raw_data)
    assert "model.onnx" in json.loads((artifact / "manifest.json").read_text())["files"]
    assert len(list((artifact / "graphs").rglob("*.txt"))) > 20
    assert [path.name for path in artifact.rglob("*.onnx")] == ["model.onnx"]  # graphs as ONNX are made on demand


@pytest.mark.slow
def test_a_skeleton_that_came_with_the_model_goes_first(artifact: Path, tmp_path: Path) -> None:
    """A model read from ONNX is written back into its own graph."""
    own = onnx.ModelProto.FromString((artifact / "model.onnx").read_bytes())
    own.producer_name = "somebody else"
    x, _ = batch(0)
    job = Job(
        ZOO[NAME](), (x,), resolve_loss("cross_entropy"), Request(layers=1, r={"*": 2}),
        skeleton=own.SerializeToString(),
    )  # fmt: skip
    with lean():
        folder = compile_job(job, tmp_path / "own_step", find_target("native"))
    with gfcompile.load(folder) as step:
        step.export_onnx(tmp_path / "own.onnx")
    assert onnx.load(tmp_path / "own.onnx").producer_name == "somebody else"


# ---- the command


def export(artifact: Path, *options: str | Path) -> int:
    return main(["export", str(artifact), *map(str, options)])


def error_of(capsys: Capture, *options: str | Path) -> str:
    assert main(["export", *map(str, options)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_the_command_writes_both(artifact: Path, trained: CompiledStep, tmp_path: Path, capsys: Capture) -> None:
    model, weights, checkpoint = tmp_path / "a.onnx", tmp_path / "a.safetensors", artifact.parent / "trained.ckpt"
    assert export(artifact, "--checkpoint", checkpoint, "--onnx", model, "--state-dict", weights) == 0
    assert capsys.readouterr().out == f"wrote {model} and {weights} after 3 steps of training\n"
    trained.export_onnx(tmp_path / "same.onnx")
    assert model.read_bytes() == (tmp_path / "same.onnx").read_bytes()
    state = load_file(weights)
    assert state.keys() == trained.state_dict().keys()
    for name, tensor in trained.state_dict().items():
        np.testing.assert_array_equal(state[name], tensor.numpy())
    assert {path.name for path in tmp_path.iterdir()} == {"a.onnx", "a.safetensors", "same.onnx"}


def test_without_a_checkpoint_the_weights_are_those_compiled(artifact: Path, tmp_path: Path, capsys: Capture) -> None:
    assert export(artifact, "--state-dict", tmp_path / "a.safetensors", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"artifact": str(artifact), "steps": 0, "state_dict": str(tmp_path / "a.safetensors")}
    for name, tensor in ZOO[NAME]().state_dict().items():
        np.testing.assert_array_equal(load_file(tmp_path / "a.safetensors")[name], tensor.numpy())


def test_nothing_to_write(artifact: Path, capsys: Capture) -> None:
    assert error_of(capsys, artifact, "--quiet") == (
        "gfcompile: error: export: nothing to write; give --onnx OUT.onnx, --state-dict OUT.safetensors, or both"
    )


@pytest.mark.parametrize("option", ["--onnx", "--state-dict"])
def test_a_file_is_not_written_over(artifact: Path, option: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "thesis"
    path.write_text("years of work")
    assert error_of(capsys, artifact, option, path, "--quiet") == (
        f"gfcompile: error: {option} {path}: exists; choose another name, or remove it first"
    )
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("option", ["--onnx", "--state-dict"])
def test_a_place_that_cannot_be_written(artifact: Path, option: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "gone" / "out"
    assert error_of(capsys, artifact, option, path, "--quiet") == (
        f"gfcompile: error: {path}: cannot be written (No such file or directory); choose another place"
    )


def test_a_folder_that_is_no_artifact(tmp_path: Path, capsys: Capture) -> None:
    assert error_of(capsys, tmp_path, "--onnx", tmp_path / "a.onnx", "--quiet") == (
        f"gfcompile: error: '{tmp_path}': no manifest.json there; pass the folder that gfcompile wrote"
    )


def test_an_artifact_without_a_model(artifact: Path, tmp_path: Path) -> None:
    """As `compiler.write_step` writes it where nobody observed the tracing."""
    copy = Path(shutil.copytree(artifact, tmp_path / "old_step"))
    files = manifest_of(copy)["files"]
    del files["model.onnx"]
    edit_manifest(copy, files=files)
    with gfcompile.load(copy) as step, pytest.raises(UserError) as caught:
        step.export_onnx(tmp_path / "a.onnx")
    assert str(caught.value) == f"{copy}: holds no model.onnx; compile again"


def test_a_model_that_onnx_cannot_say(artifact: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(artifact, tmp_path / "odd_step"))
    skeleton = onnx.load(copy / "model.onnx")
    skeleton.metadata_props.add(key="gfcompile.untranslated", value='["aten.cholesky.default"]')
    (copy / "model.onnx").write_bytes(skeleton.SerializeToString())
    list_anew(copy, "model.onnx")
    with gfcompile.load(copy) as step, pytest.raises(UserError) as caught:
        step.export_onnx(tmp_path / "a.onnx")
    assert str(caught.value) == (
        f"{copy}: no ONNX form is known of its aten.cholesky.default; export the weights with --state-dict"
    )
    assert not (tmp_path / "a.onnx").exists()
