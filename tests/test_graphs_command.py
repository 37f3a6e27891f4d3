"""`gfcompile graphs`: a list of an artifact's graphs, and the ONNX that a compile no longer writes, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch

from gfcompile.cli import main
from gfcompile.export.dumps import Dumps
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import AdamW, Optimizer
from gfcompile.settings.schema import Request
from gfcompile.stages import rewrite, trace
from tests.models.zoo import INPUTS, ZOO
from tests.selection import often

OPTIMIZERS: dict[str, Optimizer] = {"separable": AdamW(clip_norm=1.0)}
REQUESTS = {
    "plain": Request(layers=1, r={"*": 2}),
    "grouped": Request(layers=2, r={"*": 2}, sparse={"*": 0.5}),
    "separable": Request(layers=2, r={"*": 2}, batchnorm="train"),
    "dilated": Request(layers=2, r={"*": 2}),
}
Capture = pytest.CaptureFixture[str]


def dump(name: str, folder: Path) -> None:
    """What compiling this network shows: all programs, that of its prefix cache included, after every pass."""
    loss, options = resolve_loss("cross_entropy"), {"optimizer": OPTIMIZERS[name]} if name in OPTIMIZERS else {}
    job = Job(ZOO[name](), (torch.zeros(INPUTS[name]),), loss, REQUESTS[name], cache_prefix=name == "plain", **options)
    rewrite(trace(job), observe=Dumps(folder).observe)


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumped")
    dump("plain", folder)
    return folder


@pytest.fixture
def texts(dumped: Path, tmp_path: Path) -> Path:
    """As an artifact has them: text only."""
    folder = tmp_path / "plain_step"
    shutil.copytree(dumped, folder / "graphs", ignore=shutil.ignore_patterns("*.onnx"))
    return folder


def onnx_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.onnx")}


def error_of(capsys: Capture, *arguments: object) -> str:
    assert main(["graphs", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()[-1].removeprefix("gfcompile: error: ")


@pytest.mark.slow
def test_the_text_is_all_that_onnx_needs(dumped: Path, texts: Path, tmp_path: Path) -> None:
    expected = onnx_files(dumped)
    assert len(expected) > 40
    assert main(["graphs", str(texts), "--onnx", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert onnx_files(tmp_path / "out") == expected
    assert onnx_files(texts) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", often(["dilated", "grouped", "separable"], ["grouped"]))
def test_whatever_is_in_the_graph(name: str, tmp_path: Path) -> None:
    dump(name, tmp_path)
    expected = onnx_files(tmp_path)
    assert main(["graphs", str(tmp_path), "--onnx", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert onnx_files(tmp_path / "out") == expected


def test_beside_the_texts_only_what_is_named(capsys: Capture, dumped: Path, texts: Path) -> None:
    command = ["graphs", str(texts), "--onnx", "3", "predict/00", "train/03_select", "predict/01_static_moves.txt"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert out == f"wrote 3 graphs as ONNX to {texts}\n"
    assert err.count("writing graph") == 1  # once, where lines are not rewritten
    found = onnx_files(texts / "graphs")
    assert sorted(found) == ["predict/00_traced.onnx", "predict/01_static_moves.onnx", "train/03_select.onnx"]
    assert found.items() <= onnx_files(dumped).items()
    assert onnx.ModelProto.FromString(found["train/03_select.onnx"]).doc_string == "train program, 03: select"


def test_the_list(capsys: Capture, texts: Path) -> None:
    assert main(["graphs", str(texts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line[0] != " "] == ["train", "gradients", "predict", "features", "train_features"]
    text = (texts / "graphs" / "train" / "00_traced.txt").read_text()
    calls = text.partition("):\n")[2].partition("    return (")[0].count("\n")
    assert calls > 10
    assert lines[1].split() == ["00", "traced", str(calls), "calls"]
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["01", "static_moves"],
        ["02", "canonicalize"],
        ["03", "select"],
    ]
    assert main(["graphs", str(texts / "graphs" / "train")]) == 0  # one program's folder will do
    assert capsys.readouterr().out.splitlines() == lines[: lines.index("gradients")]


def test_the_list_as_json(capsys: Capture, texts: Path, tmp_path: Path) -> None:
    assert main(["graphs", str(texts), "train/03", "--onnx", "--out", str(tmp_path / "out"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["program"], row["number"], row["pass"]) == ("train", "03", "select")
    assert row["text"] == str(texts / "graphs" / "train" / "03_select.txt")
    assert row["onnx"] == str(tmp_path / "out" / "train" / "03_select.onnx")
    assert Path(row["onnx"]).is_file()


@pytest.mark.parametrize("command", [["graphs", "DIR"], ["diff", "DIR", "00", "01"]])
def test_who_reads_texts_waits_for_no_torch(texts: Path, command: list[str]) -> None:
    arguments = [str(texts) if word == "DIR" else word for word in command]
    program = (
        f"import sys; from gfcompile.cli import main; code = main({arguments!r}); "
        "heavy = {'torch', 'tvm', 'onnx'} & set(sys.modules); sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_refused(capsys: Capture, texts: Path, tmp_path: Path) -> None:
    gone, empty, train = tmp_path / "gone", tmp_path / "empty", texts / "graphs" / "train"
    empty.mkdir()
    assert error_of(capsys) == "the following arguments are required: ARTIFACT|DIR; see gfcompile graphs --help"
    assert error_of(capsys, gone) == f"{gone}: no such folder; give the one that --dump wrote, or an artifact"
    assert error_of(capsys, empty) == f"{empty}: holds no graphs; give the folder that --dump wrote, or an artifact"
    assert error_of(capsys, texts, "--out", empty) == (
        f"--out {empty}: says where ONNX goes; add --onnx, or leave it out"
    )
    assert error_of(capsys, texts, "9" * 5000).startswith(f"{train}: no dump '{'9' * 5000}'; there are: 00_traced, ")
    assert error_of(capsys, texts, "other/03", "--onnx") == (
        f"{texts / 'graphs' / 'other'}: no dump '03'; there are: none"
    )
    assert onnx_files(tmp_path) == {}


def test_texts_that_somebody_changed(capsys: Capture, texts: Path) -> None:
    train = texts / "graphs" / "train"
    traced, select = train / "00_traced.txt", train / "03_select.txt"
    traced.write_bytes(b"\xff\xfe\x00")
    assert error_of(capsys, texts, "--quiet") == f"{traced}: is no text; give a .txt file that --dump wrote"
    assert main(["diff", str(texts), "00", "01"]) == 2
    assert capsys.readouterr().err == f"gfcompile: error: {traced}: is no text; give a .txt file that --dump wrote\n"
    select.write_text("def step(\n    x,  # input x float32[2]\n):\n    return (\n        y,  # output y\n    )\n")
    assert error_of(capsys, texts, "03", "--onnx", "--quiet") == (
        f"{select}: line 5: 'y' is not defined before this line"
    )
    select.write_text("def step(\n    x,  # input x float32[2]\n):\n    return (\n        None,  # output y\n    )\n")
    assert error_of(capsys, texts, "03", "--onnx", "--quiet") == (
        f"{select}: has no ONNX form (AttributeError: 'NoneType' object has no attribute 'op');"
        " give a graph that the compiler wrote"
    )


def test_a_place_that_cannot_be_written(capsys: Capture, texts: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert error_of(capsys, texts, "03", "--onnx", "--out", blocked, "--quiet") == (
        f"{blocked / 'train' / '03_select.onnx'}: cannot be written (Not a directory); give another folder with --out"
    )
