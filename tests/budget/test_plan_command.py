"""`gfcompile plan` and `--plan`: what is written, what is said, and one line for every wrong wish."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gfcompile.cli import main
from gfcompile.cli.compile_command import compile_command
from gfcompile.cli.parsers import compile_parser, plan_parser
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "plan: needs a budget; give --memory, as in --memory 2MB"),
        (["--memory", "lots"], "--memory lots: must be a number of bytes, as in 262144, 256KB or 2MB"),
        (["--memory", "-3"], "--memory -3: must be a number of bytes, as in 262144, 256KB or 2MB"),
        (
            ["--memory", "2MB", "--step-flops", "many"],
            "--step-flops many: must be a number of operations, as in 250M or 1.5G",
        ),
        (
            ["--memory", "2MB", "--data", "nowhere.npz"],
            "--data nowhere.npz: no such file; write it with numpy.savez(path, x=..., y=...)",
        ),
        (["--memory", "2MB", "--r", "0"], "--r 0: must be patch edges of 1 or more, as in 1,2,4,7"),
        (
            ["--memory", "2MB", "--sparse", "2"],
            "--sparse 2.0: must be shares of the input channels between 0 and 1, as in 0.5,0.25",
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


@pytest.mark.parametrize("beside", ["mine.json", "mine.svg"])
def test_what_is_beside_it_is_left_alone(capsys: Capture, folder: Path, tmp_path: Path, beside: str) -> None:
    (tmp_path / beside).write_text("mine")
    path = tmp_path / "mine.toml"
    line = error_of(capsys, "plan", str(folder / "net.pt"), "--memory", "2MB", "--out", str(path))
    assert line == (
        f"gfcompile: error: --out {path}: {beside} beside it is there already, and may have been edited; remove it, or"
        " choose another"
    )
    assert (tmp_path / beside).read_text() == "mine"


def test_where_a_plan_cannot_be_written(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    """Said before anything is loaded: there is no such model either."""
    path = tmp_path / "plan.json"
    line = error_of(capsys, "plan", "nowhere.pt", "--memory", "2MB", "--out", str(path))
    assert line == f"gfcompile: error: --out {path}: a plan's name ends in .toml; use {tmp_path / 'plan.toml'}"
    path = tmp_path / "there" / "plan.toml"
    line = error_of(capsys, "plan", "nowhere.pt", "--memory", "2MB", "--out", str(path))
    assert line == f"gfcompile: error: --out {path}: there is no folder {path.parent}; make it, or choose another"


def test_the_command_that_compiles_it() -> None:
    """What decides the arena, as it was given; what the plan decides, and what is for `plan` alone, is left out."""
    given = shlex.split(
        "net.pt --memory 1MB --step-flops=2G --layers 2 --train 6 --r 2,4 --sparse none --batchnorm *=train --dropout"
        " --optimizer adam --betas 0.8,0.9 --amsgrad --group *.bias:weight_decay=0 --weight-decay=0.1 --board rpi4"
        " --batch 4 --quiet --json --out my/plan.toml --trust"
    )
    kept = (
        "--batchnorm '*=train' --dropout --optimizer adam --betas 0.8,0.9 --amsgrad --group '*.bias:weight_decay=0'"
        " --weight-decay=0.1 --target rpi4"
    )
    args = plan_parser().parse_args(given, argparse.Namespace(given=given))
    start = "gfcompile net.pt --plan my/plan.toml"
    assert compile_command(args, None) == f"{start} {kept} --batch 4 --trust"
    assert compile_command(args, "4x2x12x12") == f"{start} {kept} --trust --input 4x2x12x12"
    compile_parser().parse_args(shlex.split(compile_command(args, None))[1:])


@pytest.mark.slow
def test_the_batch_is_the_example(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    """With --data alone; and the printed command has its shape."""
    model, out = str(folder / "net.pt"), tmp_path / "plan.toml"
    options = ["--layers", "1", "--r", "2", "--sparse", "none", "--optimizer", "adam"]
    batch = folder / "batch.npz"
    assert main(["plan", model, "--data", str(batch), "--memory", "1MB", "--out", str(out), *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"input 2x2x12x12: from {batch}\n")
    command = f"gfcompile {model} --plan {out} --optimizer adam --input 2x2x12x12"
    assert text.endswith(f"wrote {out}; compile it with: {command}\n")
    assert main([*shlex.split(command)[1:], "--dry-run", "--json", "--quiet"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = json.loads(out.with_suffix(".json").read_text())
    assert report["memory"]["arena_bytes"] == found["chosen"]["arena_bytes"]


@pytest.mark.slow
def test_a_batch_that_is_not_finite(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    _, x, y = small()
    np.savez(tmp_path / "bad.npz", x=np.full_like(x.numpy(), np.nan), y=y.numpy())
    for command in (["plan", "--memory", "1MB", "--out", str(tmp_path / "plan.toml")], ["quality"]):
        line = error_of(capsys, *command, str(folder / "net.pt"), "--data", str(tmp_path / "bad.npz"))
        assert line == "gfcompile: error: batch: the loss is nan: x holds NaN or infinity; save samples without"


def test_not_beside_r(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    line = error_of(
        capsys, str(folder / "net.pt"), *SHAPE, "--plan", str(tmp_path / "plan.toml"), "--r", "2", "--dry-run"
    )
    assert line == "gfcompile: error: --plan: says what is filtered; leave out --r, and edit the file"
