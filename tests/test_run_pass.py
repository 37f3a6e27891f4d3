"""`gfcompile run-pass`: one pass on a dump, as CONTRIBUTING says; a broken contract seen again from its dump."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import fx

from gfcompile.cli import main
from gfcompile.graph.nodes import emit
from gfcompile.graph.text import print_graph
from gfcompile.graph.text_reader import parse_graph
from gfcompile.passes import filter as filter_pass
from gfcompile.passes.filter import Filter
from gfcompile.runtime.manifest import WEIGHTS, write_manifest
from gfcompile.runtime.tensorfile import sha256
from tests.runtime.conftest import manifest

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "examples" / "graphs" / "select.txt"
FOLDED = """\
def step(
    w,  # parameter w float32[2, 2]
    x,  # input x float32[2, 2]
):
    neg = aten.neg(w)
    mm = aten.mm(x, neg)
    return (
        mm,  # output output
    )
"""


def line_of_contributing() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (line,) = [part for part in text.split("`") if part.startswith("gfcompile run-pass ")]
    return shlex.split(line)[1:]


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run-pass", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.removeprefix("gfcompile: error: ").rstrip("\n")


def test_the_line_of_contributing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert main(line_of_contributing()) == 0
    printed = capsys.readouterr().out
    step = Filter().run(parse_graph(SHIPPED.read_text()))
    assert printed == print_graph(step, "select, then filter")
    assert "gf.filtered_convolution_backward" in SHIPPED.read_text()
    assert "gf.filtered_convolution_backward" not in printed
    assert "gf.channel_mix_weight(" in printed


def test_passes_follow_each_other_through_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What --out writes is a dump again."""
    filtered, updated = tmp_path / "filtered.txt", tmp_path / "updated.txt"
    assert main(["run-pass", "filter", str(SHIPPED), "--out", str(filtered)]) == 0
    assert main(["run-pass", "clip_gradients:norm=2,value=0.5", str(filtered), "--out", str(updated)]) == 0
    assert main(["run-pass", "append_optimizer:name=adamw,weight_decay=0.25", str(updated)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# updated, then append_optimizer\n#   1 sites: ")
    assert "gf.clip_coefficient([square_sum_default], 2.0)" in text
    assert "aten.clamp(mul_tensor, -0.5, 0.5)" in text
    assert "weight_decay=0.25, decoupled=True" in text


def test_constants_are_made_of_the_weights_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A constant whose entries are all the same is written as a number: so the text shows whose weights they were."""
    dump, weights = tmp_path / "dump.txt", tmp_path / "w.safetensors"
    dump.write_text(FOLDED)
    save_file({"w": torch.full((2, 2), 7.0)}, weights)
    assert main(["run-pass", "fold_frozen", str(dump), "--weights", str(weights)]) == 0
    captured = capsys.readouterr()
    assert "aten.full([2, 2], -7.0, dtype=torch.float32)" in captured.out
    assert captured.err == ""
    assert main(["run-pass", "fold_frozen", str(dump)]) == 0
    captured = capsys.readouterr()
    assert "# constant folded.1.neg float32[2, 2]" in captured.out
    assert captured.err == "gfcompile: note: 1 tensors are drawn by name, and constants made of them; give --weights\n"


def test_a_dump_in_an_artifact_finds_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "graphs" / "train" / "00_traced.txt"
    dump.parent.mkdir(parents=True)
    dump.write_text(FOLDED)
    save_file({"w": torch.full((2, 2), 5.0)}, tmp_path / WEIGHTS)
    write_manifest(tmp_path, {**manifest(), "files": {WEIGHTS: sha256((tmp_path / WEIGHTS).read_bytes())}})
    assert main(["run-pass", "fold_frozen", str(dump)]) == 0
    assert "aten.full([2, 2], -5.0, dtype=torch.float32)" in capsys.readouterr().out
    elsewhere = tmp_path / "dump.txt"
    elsewhere.write_text(FOLDED)
    assert main(["run-pass", "fold_frozen", str(elsewhere), "--weights", str(tmp_path)]) == 0
    assert "aten.full([2, 2], -5.0, dtype=torch.float32)" in capsys.readouterr().out


@pytest.mark.slow
def test_a_broken_contract_is_seen_again_from_its_dump(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = emit(graph, target, *args, **kwargs)
        if target is torch.ops.aten.sum.dim_IntList:
            node.meta["val"] = node.meta["val"].new_empty([7])
        return node

    monkeypatch.setattr(filter_pass, "emit", mistaken)
    model = ["tests.models.zoo:plain", "--input", "4x3x16x16", "--layers", "1", "--r", "2", "--quiet"]
    assert main([*model, "--out", str(tmp_path / "out"), "--dump", str(tmp_path)]) == 70
    broken = capsys.readouterr().err
    assert "pass 'filter' left 'sum_dim_int_list' recorded as float32[7], and it is float32[12]" in broken
    written = sorted(path.name for path in (tmp_path / "train").glob("*.txt"))
    assert written[-1].endswith("_select.txt")
    assert main(["run-pass", "filter", str(tmp_path / "train" / written[-1])]) == 70
    assert capsys.readouterr().err.partition(";")[0] == broken.partition(";")[0]
    monkeypatch.undo()
    assert main(["run-pass", "filter", str(tmp_path / "train" / written[-1])]) == 0


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped, missing, broken, binary = str(SHIPPED), str(tmp_path / "a"), tmp_path / "b.txt", tmp_path / "c.txt"
    broken.write_text(SHIPPED.read_text().replace("aten.sum(product)", "aten.sum(nothing)"))
    binary.write_bytes(b"\xff\xfe\x00")
    assert error_of(capsys, "filters", shipped).startswith(
        "pass 'filters': no such pass; there are: static_moves, canonicalize, select, filter, "
    )
    assert error_of(capsys, "filter", missing) == (
        f"{missing}: cannot be read (No such file or directory); give a .txt file that --dump wrote"
    )
    assert error_of(capsys, "filter", str(binary)) == f"{binary}: is no text; give a .txt file that --dump wrote"
    assert error_of(capsys, "filter", str(broken)) == f"{broken}: line 10: 'nothing' is not defined before this line"
    assert error_of(capsys, "filter:r=2", shipped) == "run-pass filter:r=2: 'filter' has no setting 'r'; leave it out"
    assert error_of(capsys, "clip_gradients:max=2", shipped) == (
        "run-pass clip_gradients:max=2: 'clip_gradients' has no setting 'max'; use norm, value"
    )
    assert error_of(capsys, "clip_gradients:norm=0", shipped) == (
        "run-pass clip_gradients:norm=0: norm '0' must be a number above 0"
    )
    out = tmp_path / "no" / "out.txt"
    assert error_of(capsys, "filter", shipped, "--out", str(out)) == (
        f"--out {out}: cannot be written (No such file or directory); choose another place"
    )


def test_a_step_that_a_pass_cannot_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "predict.txt"
    dump.write_text(FOLDED)
    line = error_of(capsys, "merge_equal", str(dump))
    assert line.startswith(f"{dump}: 'merge_equal' cannot take this step (ValueError: ")
    assert line.endswith("; give it a graph from before its place in `gfcompile passes`")
