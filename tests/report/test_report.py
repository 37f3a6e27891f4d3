"""report.json's schema, the page, and the picture of the arena."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Analysis, Job
from gfcompile.passes.prefix import Ending
from gfcompile.report import Report, as_data, make_report, read_report, write_report
from gfcompile.report.arena_picture import Box, draw_arena
from gfcompile.report.page import prefix_lines, render_page
from gfcompile.report.schema import KeptBytes
from gfcompile.report.summary import summary_text
from gfcompile.report.units import in_bytes, in_flops
from gfcompile.settings.schema import Request
from gfcompile.stages import analyse
from gfcompile.step import Refusal
from tests.lean import analyse_lean
from tests.models.zoo import INPUTS, ZOO

SVG = "{http://www.w3.org/2000/svg}"


def job_for(model: str, **wishes: Any) -> Job:
    return Job(ZOO[model](), (torch.zeros(INPUTS[model]),), resolve_loss("cross_entropy"), Request(**wishes))


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(job_for("separable", layers=3, r={"*": 2}))


@pytest.fixture(scope="module")
def report(analysis: Analysis) -> Report:
    return make_report(analysis)


@pytest.mark.slow
def test_it_is_json(report: Report) -> None:
    again = json.loads(json.dumps(as_data(report), allow_nan=False))
    assert {"plan", "layers", "memory", "refusals", "passes", "versions"} <= set(again)


def test_plan_and_layers(report: Report) -> None:
    assert report.plan.filtered == ("2.0", "3.0", "4.0")
    assert report.plan.trained == ("2.0", "3.0", "4.0", "7")
    layers = {layer.name: layer for layer in report.layers}
    frozen, filtered, head = layers["0.0"], layers["3.0"], layers["7"]
    assert (frozen.trained, frozen.filtered, frozen.r, frozen.role) == (False, False, None, "frozen")
    assert (filtered.trained, filtered.filtered, filtered.r, filtered.role) == (True, True, 2, "layer")
    assert (head.kind, head.trained, head.filtered, head.role) == ("linear", True, False, "head")
    assert filtered.geometry.groups == 12
    assert filtered.kept_bytes == KeptBytes(exact=4 * 12 * 81 * 4, filtered=4 * 12 * 9 * 4)
    assert filtered.flops.filtered.backward < filtered.flops.exact.backward
    assert layers["2.0"].flops.exact.input_gradient == 0  # nothing before it is trained


def test_memory(analysis: Analysis, report: Report) -> None:
    memory = report.memory
    assert memory.numbers_are == "counted"
    assert memory.saved_bytes == sum(row.bytes for row in memory.saved) == analysis.saved_bytes
    assert memory.arena_bytes == max(memory.arena_bytes_by_program.values())
    assert set(memory.arena_bytes_by_program) == {"train", "gradients", "predict"}
    assert memory.state_bytes["total"] == sum(entry.bytes for entry in analysis.state.entries)
    assert memory.exact_saved_bytes == analysis.exact_saved_bytes
    assert memory.conv_inputs.filtered_bytes < memory.conv_inputs.exact_bytes
    assert memory.scratch_bytes_a_thread == analysis.scratch_bytes


def test_the_frozen_prefix(analysis: Analysis, report: Report) -> None:
    """What a cache would save is always said."""
    prefix = report.prefix
    assert (prefix.numbers_are, prefix.compiled, prefix.refusal) == ("counted", False, None)
    assert prefix.share == round(prefix.multiply_adds / prefix.step_multiply_adds, 4)
    assert prefix.features == tuple(tuple(node.meta["val"].shape) for node in analysis.prefix.features)
    assert prefix.bytes_a_sample["float32"] == 2 * prefix.bytes_a_sample["float16"]
    (line,) = prefix_lines(prefix)
    assert line in summary_text(report)
    assert line in render_page(report)
    assert "step.open_cache keeps them" in prefix_lines(replace(prefix, compiled=True))[0]
    ending = Ending("bn1", "'mean' mixes the samples of a batch", "use another")
    assert prefix_lines(replace(prefix, endings=(ending,)))[1] == (
        "  it ends at 'bn1': 'mean' mixes the samples of a batch; use another"
    )
    assert prefix_lines(replace(prefix, refusal="there is nothing")) == [
        "frozen prefix: nothing to cache: there is nothing"
    ]


def test_passes_and_versions(report: Report) -> None:
    names = [row.name for row in report.passes if row.program == "train"]
    assert names[:4] == ["static_moves", "canonicalize", "select", "filter"]
    assert all(row.seconds >= 0 and row.seconds_are == "measured" for row in report.passes)
    assert {"gfcompile", "torch", "tvm", "python"} <= set(report.versions)


@pytest.mark.slow
def test_a_refused_layer_has_its_reason() -> None:
    report = make_report(analyse_lean(job_for("grouped", layers=1, compat="reference")))
    reason = "the reference formulas know groups=1 and depthwise only, not groups=4"
    assert report.refusals == (Refusal("2.0", reason),)
    layer = next(layer for layer in report.layers if layer.name == "2.0")
    assert (layer.trained, layer.filtered, layer.r, layer.refusal) == (True, False, None, reason)
    assert layer.kept_bytes.filtered == layer.kept_bytes.exact
    assert report.plan.filtered == ()


def test_files(analysis: Analysis, report: Report, tmp_path: Path) -> None:
    write_report(analysis, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arena.svg", "memory.svg", "report.json", "report.md"]
    assert json.loads((tmp_path / "report.json").read_text()) == as_data(report)
    assert read_report(tmp_path) == report
    page = (tmp_path / "report.md").read_text()
    assert "(arena.svg)" in page
    assert "(memory.svg)" in page
    assert "*counted*" in page
    for name in report.plan.trained:
        assert f"| {name} |" in page
    picture = ElementTree.parse(tmp_path / "arena.svg").getroot()
    placed = analysis.programs["train"].placement.offsets
    drawn = [rect for rect in picture.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(drawn) == len(placed)


def test_the_picture_escapes_names_and_stays_inside() -> None:
    boxes = [
        Box(0, 2, 0, 1024, "forward", "a<b"),
        Box(1, 4, 1024, 1024, "saved", "x"),
        Box(3, 4, 0, 512, "backward", "g"),
    ]
    picture = ElementTree.fromstring(draw_arena(boxes, 4, "train"))
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    for rect in picture.iter(f"{SVG}rect"):
        left, top = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert left >= 0
        assert top >= 0
        assert left + float(rect.get("width", 0)) <= width
        assert top + float(rect.get("height", 0)) <= height
    assert "2.00 KB, 4 kernel calls" in "".join(picture.itertext())


def test_an_empty_arena_has_a_picture() -> None:
    assert ElementTree.fromstring(draw_arena([], 0, "train")) is not None


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 B"), (1536, "1.50 KB"), (64 * 1024, "64.00 KB"), (25 * 2**20 + 2**19, "25.50 MB")]
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert in_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12"), (1500, "1.50 k"), (28_320_000, "28.32 M"), (5 * 10**9, "5.00 G")]
)
def test_flops_for_people(count: int, text: str) -> None:
    assert in_flops(count) == text


@pytest.mark.slow
def test_drawn_channels() -> None:
    """Counted by hand: 3 of 12 pairs of channels, 6 of 24, and a head that is updated whole."""
    shares = {"3.0": 0.25, "4.0": 0.25}
    report = make_report(analyse_lean(job_for("separable", layers=2, r={"*": 2}, sparse=shares)))
    layers = {layer.name: layer for layer in report.layers}
    assert (layers["2.0"].channels, layers["3.0"].channels, layers["4.0"].channels) == (None, 3, 6)
    assert layers["3.0"].kept_bytes.filtered == 4 * 3 * 9 * 4
    dense = make_report(analyse_lean(job_for("separable", layers=2, r={"*": 2})))
    whole = next(layer for layer in dense.layers if layer.name == "4.0").flops.filtered
    part = layers["4.0"].flops.filtered
    assert 4 * part.weight_gradient == whole.weight_gradient
    assert part.input_gradient == whole.input_gradient
    updated, total = 3 * 2 * 25 + 12 * 6, 8 * 3 * 9 + 8 * 9 + 12 * 8 + 24 * 25 + 12 * 24
    words = (
        f"sparse: 2 layers, channels drawn anew every step; a step updates {updated} of {total} convolution weights,"
        f" {100 * updated / total:.2f} %, counted"
    )
    assert words in summary_text(report)
    assert words in render_page(report)
    assert "6 of 24" in render_page(report)
    assert report.memory.saved_bytes == sum(row.bytes for row in report.memory.saved)
    assert "sparse" not in summary_text(dense)
    assert dense.sparse is None
