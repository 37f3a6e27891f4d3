"""`gfcompile plan` and `--plan`: what is written, what is said, and one line for every wrong wish."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gfcompile.cli import main
from tests.budget.nets import small
from tests.test_cli import error_of

Capture = pytest.CaptureFixture[str]
SHAPE = ["--input", "2x2x12x12"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    model, x, y = small()
    torch.save(model, folder / "net.pt")
    np.savez(folder / "batch.npz", x=x.numpy(), y=y.numpy())
    return folder


def test_plan_and_compile_it(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    """With sparse updates among the choices; the dry run of the plan takes the arena that was promised."""
    model, out = str(folder / "net.pt"), tmp_path / "plan.toml"
    options = ["--layers", "1", "--r", "2", "--sparse", "0.25", "--step-flops", "10M", "--quiet"]
    assert main(["plan", model, *SHAPE, "--memory", "1MB", "--out", str(out), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["score_is"] == "estimated"
    ways = {row["layers"]["6"] for row in found["candidates"]}
    assert {"exact", "freeze"} <= ways
    assert any("sparse 0.25" in way for way in ways)
    assert found["chosen"]["layers"] == {"6": "exact", "10": "exact"}
    assert '"6"  = { do = "exact" }' in out.read_text()
    ElementTree.parse(out.with_suffix(".svg"))
    assert main([model, *SHAPE, "--plan", str(out), "--dry-run", "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["memory"]["arena_bytes"] == found["chosen"]["arena_bytes"]
    assert report["plan"]["trained"] == ["6", "10"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "plan: needs a budget; give --memory, as in --memory 2MB"),
        (["--memory", "lots"], "--memory 'lots': must be a number of bytes, as in 262144, 256KB or 2MB"),
        (["--memory", "-3"], "--memory '-3': must be a number of bytes, as in 262144, 256KB or 2MB"),
        (
            ["--memory", "2MB", "--step-flops", "many"],
            "--step-flops 'many': must be a number of operations, as in 250M or 1.5G",
        ),
        (
            ["--memory", "2MB", "--data", "nowhere.npz"],
            "--data nowhere.npz: no such file; write it with numpy.savez(path, x=..., y=...)",
        ),
        (["--memory", "2MB", "--r", "0"], "--r '0': must be patch edges of 1 or more, as in 1,2,4,7"),
        (
            ["--memory", "2MB", "--sparse", "2"],
            "--sparse '2.0': must be shares of the input channels between 0 and 1, as in 0.5,0.25",
        ),
        (
            ["--memory", "2MB", "--sparse", "few"],
            "--sparse 'few': must be shares joined by commas, as in 0.5,0.25, or none",
        ),
        (
            ["--memory", "2MB", "--train", "blocks.*"],
            "--train blocks.*: no layer has that name; `gfcompile inspect MODEL` lists them",
        ),
        (
            ["--memory", "2MB", "--train", "10"],
            "plan: no convolution may be trained; choose some with --layers or --train",
        ),
    ],
)  # fmt: skip
def test_wrong_wishes(capsys: Capture, folder: Path, tmp_path: Path, options: list[str], text: str) -> None:
    line = error_of(capsys, "plan", str(folder / "net.pt"), *SHAPE, "--out", str(tmp_path / "plan.toml"), *options)
    assert line == f"gfcompile: error: {text}"


def test_an_unknown_board(capsys: Capture, folder: Path) -> None:
    line = error_of(capsys, "plan", str(folder / "net.pt"), "--memory", "2MB", "--board", "rpi9")
    assert line.startswith("gfcompile: error: unknown target 'rpi9'; use one of: ")


def test_a_plan_that_is_there_is_left_alone(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("# edited")
    line = error_of(capsys, "plan", str(folder / "net.pt"), "--memory", "2MB", "--out", str(path))
    assert line == (
        f"gfcompile: error: --out {path}: is there already, and may have been edited; remove it, or choose another"
    )
    assert path.read_text() == "# edited"


def test_not_beside_r(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    line = error_of(
        capsys, str(folder / "net.pt"), *SHAPE, "--plan", str(tmp_path / "plan.toml"), "--r", "2", "--dry-run"
    )
    assert line == "gfcompile: error: --plan: says what is filtered; leave out --r, and edit the file"
