"""Numbered dumps of the graphs, as text and as ONNX, and their differences."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from gfcompile.errors import UserError
from gfcompile.export.dumps import Dumps, diff
from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.survey import survey
from gfcompile.frontend.trace import forward_step, trace_forward, trace_training, working_copy
from gfcompile.job import Job
from gfcompile.passes import pipeline
from gfcompile.plan import make_plan
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from tests.models.zoo import INPUTS, ZOO

NUMBERS = {rewrite.name: f"{index:02}" for index, rewrite in reversed(list(enumerate(pipeline.FILTERING, 1)))}
SELECT, FILTER = NUMBERS["select"], NUMBERS["filter"]


def dump(folder: Path | None) -> Dumps:
    loss, model, x = resolve_loss("cross_entropy"), ZOO["plain"](), torch.zeros(INPUTS["plain"])
    request = Request(layers=1, r={"*": 2})
    plan = make_plan(make_survey(Job(model, (x,), loss, request)), request)
    step = trace_training(working_copy(model), (x,), loss.target_like(model(x)), loss, plan)
    dumps = Dumps(folder)
    pipeline.run(step, pipeline.FILTERING, lambda index, name, step: dumps.observe("train", index, name, step))
    return dumps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps")
    dump(path)
    return path


@pytest.mark.slow
def test_every_pass_has_a_numbered_file(folder: Path) -> None:
    names = [path.name for path in sorted((folder / "train").iterdir())]
    passes = [rewrite.name for rewrite in pipeline.FILTERING]
    stems = [f"{index:02}_{name}" for index, name in enumerate(["traced", *passes])]
    assert names == [f"{stem}{suffix}" for stem in stems for suffix in (".onnx", ".txt")]


def test_the_text_reads_as_python_with_shapes(folder: Path) -> None:
    text = (folder / "train" / f"{FILTER}_filter.txt").read_text()
    assert text.startswith(f"# train program, {FILTER}: filter\n#   1 sites: ")
    assert "# parameter 5.weight float32[12, 8, 3, 3]" in text
    assert " = gf.patch_mean(" in text
    assert "# float32[4, 12, 4, 4]" in text
    assert "# gradient 5.weight" in text
    compile(text, "filter.txt", "exec")


def test_the_onnx_file_has_the_same_doors_and_no_weights(folder: Path) -> None:
    model = onnx.load(folder / "train" / f"{FILTER}_filter.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.doc_string == f"train program, {FILTER}: filter"
    shapes = {door.name: [axis.dim_value for axis in door.type.tensor_type.shape.dim] for door in model.graph.input}
    assert shapes["parameter/5.weight"] == [12, 8, 3, 3]
    assert shapes["input/x"] == list(INPUTS["plain"])
    assert [door.name for door in model.graph.output][:2] == ["loss/loss", "gradient/5.weight"]
    assert {"patch_mean", "channel_mix_weight"} <= {node.op_type for node in model.graph.node}
    assert max(len(tensor.raw_data) for tensor in model.graph.initializer) < 100
    assert model.ByteSize() < 60_000


def test_the_prediction_program_is_kept_as_a_model_without_weights() -> None:
    model, inputs = ZOO["plain"](), (torch.zeros(INPUTS["plain"]),)
    request = Request(layers=1, r={"*": 2})
    program = trace_forward(working_copy(model), inputs)
    step = forward_step(program, make_plan(survey(program, model), request), inputs, frozenset())
    dumps = Dumps(None, model.state_dict())
    dumps.observe("predict", 0, "traced", step)
    assert dumps.model is not None
    first = dumps.model
    dumps.observe("predict", 1, "canonicalize", step)
    assert dumps.model is first
    skeleton = onnx.ModelProto.FromString(first)
    assert {tensor.name for tensor in skeleton.graph.initializer} >= set(model.state_dict())


@pytest.mark.slow
def test_equal_graphs_give_equal_files(folder: Path, tmp_path: Path) -> None:
    dump(tmp_path)
    written = [path.relative_to(folder) for path in folder.rglob("*.*")]
    assert {path.suffix for path in written} == {".txt", ".onnx"}
    for path in written:
        assert (tmp_path / path).read_bytes() == (folder / path).read_bytes()


@pytest.mark.slow
def test_an_artifact_gets_the_text_alone(folder: Path) -> None:
    """Nobody waits for ONNX that nobody asked for; `gfcompile graphs --onnx` makes it of the text."""
    dumps = dump(None)
    assert dumps.files == {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.txt"))}


def test_diff_shows_what_a_pass_did(folder: Path) -> None:
    changes = diff(folder, SELECT, FILTER)
    assert changes.startswith(f"--- train/{SELECT}_select.txt\n+++ train/{FILTER}_filter.txt\n")
    assert any(line.startswith("-") and "gf.filtered_convolution_backward(" in line for line in changes.splitlines())
    assert any(line.startswith("+") and "gf.channel_mix_weight(" in line for line in changes.splitlines())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SELECT.lstrip("0"), FILTER.lstrip("0")),
        (f"train/{SELECT}", f"train/{FILTER}"),
        (f"{SELECT}_select", f"{FILTER}_filter.txt"),
    ],
)
def test_diff_takes_numbers_paths_and_names(folder: Path, first: str, second: str) -> None:
    assert diff(folder, first, second) == diff(folder, SELECT, FILTER)


def test_diff_of_a_dump_with_itself_is_empty(folder: Path) -> None:
    assert diff(folder, FILTER, FILTER) == ""


def test_diff_reads_the_graphs_of_an_artifact(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "graphs").symlink_to(folder)
    assert diff(tmp_path, SELECT, FILTER) == diff(folder, SELECT, FILTER)


def test_a_missing_dump_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train: no dump '42'; there are: 00_traced, 01_"):
        diff(folder, SELECT, "42")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    with pytest.raises(UserError) as caught:
        diff(missing, SELECT, FILTER)
    assert str(caught.value) == f"{missing}: no such folder; give the one that --dump wrote, or an artifact"


@pytest.mark.slow
def test_an_unwritable_dump_folder_is_a_users_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"--dump .*00_traced.txt: cannot be written \(Not a directory\)"):
        dump(blocked)
