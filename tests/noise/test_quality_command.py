"""`gfcompile quality`: its table, its JSON, its picture, and what it says about wrong data."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from gfcompile.cli import main
from gfcompile.frontend.batch_file import read_batch
from tests.models.zoo import INPUTS, ZOO
from tests.test_cli import error_of

SHAPE = INPUTS["separable"][1:]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a batch for it."""
    folder = tmp_path_factory.mktemp("quality")
    torch.save(ZOO["separable"](), folder / "net.pt")
    rng = np.random.default_rng(0)
    np.savez(folder / "batch.npz", x=rng.normal(size=(6, *SHAPE)), y=np.arange(6) % 5)
    return folder


@pytest.fixture
def good(folder: Path) -> list[str]:
    return ["quality", str(folder / "net.pt"), "--data", str(folder / "batch.npz")]


@pytest.mark.slow
def test_table_words_and_picture(capsys: Capture, good: list[str], tmp_path: Path) -> None:
    assert main([*good, "--layers", "4", "--r", "1,2,4", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "layer  kernel  output  DC ratio    r  gw alone" in text
    assert "2.0: bears r=4 (cosine 0." in text
    assert "leave exact: 1.0, 3.0" in text
    assert "as options: --r 1.0=exact --r 2.0=4 --r 3.0=exact --r 4.0=4" in text
    picture = ElementTree.parse(tmp_path / "out" / "quality.svg").getroot()
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 6  # three edges, alone and together
    assert all(len((line.get("points") or "").split()) == 4 for line in lines)
    written = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert [row["layer"] for row in written["layers"]] == ["1.0", "2.0", "3.0", "4.0"]


@pytest.mark.slow
def test_json_is_the_same_data(capsys: Capture, good: list[str]) -> None:
    assert main([*good, "--layers", "2", "--r", "2", "--batch", "3", "--json", "--cosine", "0.999999"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 3
    assert found["numbers_are"] == "measured, in plain PyTorch on the given batch"
    depthwise, pointwise = found["layers"]
    assert depthwise["kernel"] == [5, 5]
    assert set(depthwise["alone"]["2"]) == {"gw", "gx", "gy", "noise_gain_db"}
    assert set(depthwise["together"]["2"]["gw"]) == {"snr_db", "cosine"}
    assert pointwise["dc_energy_ratio"] is None
    assert depthwise["bears_r"] is None
    assert depthwise["words"].startswith("leave it exact: filtered, its weight gradient has a cosine of ")
    assert found["options"] == "--r 3.0=exact --r 4.0=exact"


@pytest.mark.slow
def test_the_options_that_it_proposes_are_understood(capsys: Capture, folder: Path) -> None:
    shape = "2x" + "x".join(map(str, SHAPE))
    options = ["--layers", "2", "--r", "3.0=exact", "--r", "4.0=4", "--input", shape, "--quick", "--json"]
    assert main(["inspect", str(folder / "net.pt"), *options]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["filtered"] == ["4.0"]


@pytest.mark.parametrize(
    ("arrays", "options", "text"),
    [
        (None, [], "not a readable .npz file; write it with numpy.savez(path, x=..., y=...)"),
        (
            {"images": np.zeros((2, *SHAPE)), "y": np.zeros(2, int)},
            [],
            "has no array 'x', it has 'images', 'y'; write it with numpy.savez(path, x=..., y=...)",
        ),
        (
            {"x": np.zeros((2, *SHAPE))},
            [],
            "has no array 'y', it has 'x'; write it with numpy.savez(path, x=..., y=...)",
        ),
        (
            {"x": np.zeros((2, *SHAPE)), "y": np.zeros(3, int)},
            [],
            "samples do not match: 2 in 'x', 3 in 'y'; save as many of each",
        ),
        (
            {"x": np.zeros((2, *SHAPE), np.uint8), "y": np.zeros(2, int)},
            [],
            "'x' is uint8; save it as the model takes it: float32, int64, bool",
        ),
        (
            {"x": np.zeros((2, *SHAPE)), "y": np.zeros((2, 5))},
            [],
            "y is 2x5 float32; the loss 'cross_entropy' takes 2 whole numbers for these samples",
        ),
        ({"x": np.zeros((2, *SHAPE)), "y": np.array([0, 9])}, [], "y holds class 9; the model has classes 0 to 4"),
    ],
)
def test_wrong_data(
    capsys: Capture, folder: Path, tmp_path: Path, arrays: dict[str, np.ndarray] | None, options: list[str], text: str
) -> None:
    path = tmp_path / "bad.npz"
    if arrays is None:
        path.write_bytes(b"not an archive")
    else:
        np.savez(path, **arrays)
    line = error_of(capsys, "quality", str(folder / "net.pt"), "--data", str(path), *options)
    assert line == f"gfcompile: error: --data {path}: {text}"


def test_wrong_shape(capsys: Capture, folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "grey.npz", x=np.zeros((2, 1, 16, 16)), y=np.zeros(2, int))
    line = error_of(capsys, "quality", str(folder / "net.pt"), "--data", str(tmp_path / "grey.npz"))
    assert "grey.npz: the model cannot run on x of 2x1x16x16 (" in line
    assert line.endswith("; save samples of the shape that it takes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            [],
            "quality: needs a batch of yours; give --data FILE.npz, written with numpy.savez(path, x=..., y=...)",
        ),
        (
            ["--data", "nowhere.npz"],
            "--data nowhere.npz: no such file; write it with numpy.savez(path, x=..., y=...)",
        ),
        (["--data", "BATCH", "--batch", "9"], "--batch 9: BATCH has 6 samples; use 1 to 6"),
        (["--data", "BATCH", "--r", "2,x"], "--r '2,x': must be patch edges joined by commas, as in 1,2,4,7"),
        (["--data", "BATCH", "--r", "0"], "--r 0: must be patch edges of 1 or more, as in 1,2,4,7"),
        (
            ["--data", "BATCH", "--train", "blocks.*"],
            "--train blocks.*: no layer has that name; `gfcompile inspect MODEL` lists them",
        ),
        (
            ["--data", "BATCH", "--layers", "50"],
            "--layers 50: the model has 5 convolutions that count (shortcut projections do not); "
            "use --layers 5 or less",
        ),
    ],
)
def test_wrong_options(capsys: Capture, folder: Path, options: list[str], text: str) -> None:
    batch = str(folder / "batch.npz")
    given = [batch if each == "BATCH" else each for each in options]
    line = error_of(capsys, "quality", str(folder / "net.pt"), *given)
    assert line == f"gfcompile: error: {text.replace('BATCH', batch)}"


def test_several_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", x0=np.zeros((2, 3)), x1=np.ones((2, 4), np.int32), y=np.zeros(2, np.uint8))
    (first, second), y = read_batch(tmp_path / "two.npz")
    assert (first.dtype, second.dtype, y.dtype) == (torch.float32, torch.int64, torch.int64)
    assert second.shape == (2, 4)
