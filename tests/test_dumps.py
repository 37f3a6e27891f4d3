"""Numbered text dumps of the graphs, and their differences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gfcompile import pipeline
from gfcompile.compiler import Job, make_survey
from gfcompile.dumps import Dumps, diff
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.frontend.trace import trace_training, working_copy
from gfcompile.plan import Request, make_plan
from tests.models.zoo import INPUTS, ZOO


def dump(folder: Path | None) -> Dumps:
    loss, model, x = resolve_loss("cross_entropy"), ZOO["plain"](), torch.zeros(INPUTS["plain"])
    request = Request(layers=1, patches={"*": 2})
    plan = make_plan(make_survey(Job(model, x, loss, request)), request)
    step = trace_training(working_copy(model), x, loss.target_like(model(x)), loss, plan)
    dumps = Dumps(folder)
    pipeline.run(step, pipeline.FILTERING, lambda index, name, step: dumps.observe("train", index, name, step))
    return dumps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dumps")
    dump(path)
    return path


def test_every_pass_has_a_numbered_file(folder: Path) -> None:
    names = [path.name for path in sorted((folder / "train").iterdir())]
    passes = [rewrite.name for rewrite in pipeline.FILTERING]
    assert names == [f"{index:02}_{name}.txt" for index, name in enumerate(["traced", *passes])]


def test_the_text_reads_as_python_with_shapes(folder: Path) -> None:
    text = (folder / "train" / "03_filter.txt").read_text()
    assert text.startswith("# train program, 03: filter\n#   1 sites: ")
    assert "# parameter 5.weight float32[12, 8, 3, 3]" in text
    assert " = gf.patch_mean(" in text
    assert "# float32[4, 12, 4, 4]" in text
    assert "# gradient 5.weight" in text
    compile(text, "03_filter.txt", "exec")


def test_equal_graphs_give_equal_text(folder: Path) -> None:
    again = dump(None).texts
    assert again
    for name, text in again.items():
        assert (folder / name).read_text() == text


def test_diff_shows_what_a_pass_did(folder: Path) -> None:
    changes = diff(folder, "02", "03")
    assert changes.startswith("--- train/02_select.txt\n+++ train/03_filter.txt\n")
    assert any(line.startswith("-") and "gf.filtered_convolution_backward(" in line for line in changes.splitlines())
    assert any(line.startswith("+") and "gf.channel_mix_weight(" in line for line in changes.splitlines())


@pytest.mark.parametrize(("first", "second"), [("2", "3"), ("train/02", "train/03"), ("02_select", "03_filter.txt")])
def test_diff_takes_numbers_paths_and_names(folder: Path, first: str, second: str) -> None:
    assert diff(folder, first, second) == diff(folder, "02", "03")


def test_diff_of_a_dump_with_itself_is_empty(folder: Path) -> None:
    assert diff(folder, "03", "03") == ""


def test_diff_reads_the_graphs_of_an_artifact(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "graphs").symlink_to(folder)
    assert diff(tmp_path, "02", "03") == diff(folder, "02", "03")


def test_a_missing_dump_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"train: no dump '42'; there are: 00_traced, 01_canonicalize, "):
        diff(folder, "02", "42")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    with pytest.raises(UserError) as caught:
        diff(missing, "02", "03")
    assert str(caught.value) == f"{missing}: no such folder; give the one that --dump wrote, or an artifact"


def test_an_unwritable_dump_folder_is_a_users_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"--dump .*00_traced.txt: cannot be written \(Not a directory\)"):
        dump(blocked)
