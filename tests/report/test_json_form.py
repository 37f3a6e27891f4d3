"""report.json: its keys in their order, read back as the same report, refused where it is another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gfcompile.codegen.cuda.ptxas import Usage
from gfcompile.errors import UserError
from gfcompile.frontend.losses import resolve_loss
from gfcompile.job import Job
from gfcompile.optimizers import SGD, AdamW, Optimizer
from gfcompile.passes.prefix import Ending
from gfcompile.plan import make_plan
from gfcompile.report import Report, SurveyReport, as_data, make_report, read_report, survey_report
from gfcompile.report.json_form import from_data
from gfcompile.report.machine_schema import GpuPart, TunedAlgorithm, TunedKernel
from gfcompile.report.memory_schema import FullGradient
from gfcompile.settings.schema import Request
from gfcompile.stages import make_survey
from gfcompile.step import Refusal
from gfcompile.targets import find_target
from tests.lean import analyse_lean
from tests.models.zoo import INPUTS, ZOO

KEYS = Path(__file__).with_name("report_keys.txt")
# objects whose keys are names of programs, roles, packages, what a machine says of itself
NAMED = {"arena_bytes_by_program", "state_bytes", "bytes_a_sample", "kernels", "versions", "machine", "groups"}
MAY_MISS = {"gpu", "peak_gflops", "bandwidth_gbs", "memory_gib", "watts"}
ADAMW = AdamW(betas=(0.5, 0.75), clip_norm=1.0, groups={"*.bias": {"betas": (0.25, 0.5), "weight_decay": 0.0}})
CASES: dict[str, tuple[str, dict[str, Any], str, Optimizer]] = {
    "full": ("separable", {"layers": 2, "sparse": {"3.0": 0.25}}, "rpi4", ADAMW),
    "refused": ("grouped", {"layers": 1, "compat": "reference"}, "native", SGD(momentum=0.9)),
}


def job_for(case: str) -> Job:
    model, wishes, _, optimizer = CASES[case]
    example = (torch.zeros(INPUTS[model]),)
    return Job(ZOO[model](), example, resolve_loss("cross_entropy"), Request(**wishes), optimizer)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The full one has a row in every table, those too that only a GPU, a tuning database or another net fills."""
    found = {case: make_report(analyse_lean(job_for(case), find_target(CASES[case][2]))) for case in CASES}
    full = found["full"]
    machine = {"cpu": "a CPU", "cores": 4, "governor": None, "khz": [1, 2.5]}
    tuned = TunedKernel(
        kernel="k", template="matmul", decisions="tile 4x8", ratio=1.5, machine=machine, date="2026-01-01T00:00:00"
    )
    otherwise = TunedAlgorithm(convolution="a conv", algorithm="plain", ratio=2.0)
    gradient = FullGradient(node="g", shape=(4, 8, 17, 17), bytes=36992, reason="relu reads it pixel by pixel")
    found["full"] = replace(
        full,
        memory=replace(full.memory, full_resolution_gradients=(gradient,)),
        refusals=(Refusal("2.0", "it is too small"),),
        prefix=replace(full.prefix, endings=(Ending("bn1", "it mixes", "use another"),)),
        tuning=replace(full.tuning, tuned=(tuned,), algorithms=(otherwise,), problems=("db:1: lacks 'kernel'",)),
        gpu=GpuPart(arch="sm_53", kernels=(Usage("k", 15, 0, 0, 256, 192, 1.0),)),
    )
    return found


def keys_of(data: object, path: str = "") -> Iterator[str]:
    """Every key once, in the order in which a reader meets it."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield f"{path}{key}"
            yield from keys_of(value, f"{path}{key}.")
    elif isinstance(data, list):
        for value in data:
            yield from keys_of(value, path)


def inside(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every (object or list, key or index), at any depth; of a list, its ends; nothing inside the named ones."""
    ends = sorted({0, len(data) - 1}) if isinstance(data, list) and data else []
    for key in list(data) if isinstance(data, dict) else ends:
        yield data, key
        if key not in NAMED or isinstance(data[key], list):
            yield from inside(data[key])


@pytest.mark.slow
def test_the_keys_are_those_of_the_golden_file(reports: dict[str, Report]) -> None:
    found = "".join(f"{key}\n" for key in dict.fromkeys(keys_of(as_data(reports["full"]))))
    if os.environ.get("GF_UPDATE_GOLDEN") == "1":
        KEYS.write_text(found)
    assert found == KEYS.read_text()


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_as_it_was(reports: dict[str, Report], case: str, tmp_path: Path) -> None:
    text = json.dumps(as_data(reports[case]), indent=1)
    (tmp_path / "report.json").write_text(text)
    again = read_report(tmp_path)
    assert again == reports[case]
    assert json.dumps(as_data(again), indent=1) == text


@pytest.mark.slow
def test_a_survey_has_no_later_parts(reports: dict[str, Report]) -> None:
    """And says of the rest what the report says."""
    job = job_for("full")
    layers = make_survey(job)
    plan = make_plan(layers, job.request)
    survey = survey_report(layers, plan, plan.refused, job.example[0].shape)
    data, whole = as_data(survey), as_data(reports["full"])
    assert from_data(SurveyReport, json.loads(json.dumps(data))) == survey
    assert list(data) == list(whole)[: len(data)] == [
        "format", "numbers_are", "input_shape", "plan", "sparse", "layers", "memory", "refusals", "versions",
    ]  # fmt: skip
    assert list(data["memory"]) == ["numbers_are", "conv_inputs"]
    assert {key: value for key, value in whole.items() if key in data} == data | {
        "memory": whole["memory"],
        "refusals": whole["refusals"],
    }


def test_null_and_absent(reports: dict[str, Report]) -> None:
    """A layer without a patch says so; a step without a GPU does not mention one."""
    data = as_data(reports["refused"])
    assert "gpu" not in data
    assert data["sparse"] is None
    assert [layer["r"] for layer in data["layers"] if layer["name"] == "2.0"] == [None]
    frozen = next(layer for layer in data["layers"] if layer["kind"] == "conv" and not layer["trained"])
    assert list(frozen["flops"]) == ["numbers_are", "exact"]
    assert list(frozen["flops"]["exact"]) == ["forward"]


@pytest.mark.slow
def test_a_key_too_few_is_refused(reports: dict[str, Report]) -> None:
    data = as_data(reports["full"])
    places = [(part, key) for part, key in inside(data) if isinstance(part, dict) and key not in MAY_MISS]
    assert len(places) > 150
    for part, key in places:
        kept = part.pop(key)
        with pytest.raises(ValueError, match=r"no|keys|settings"):
            from_data(Report, data)
        part[key] = kept
    assert from_data(Report, data) == reports["full"], "all is in place again"


def test_a_key_too_many_is_refused(reports: dict[str, Report]) -> None:
    data = as_data(reports["full"])
    parts = [part[key] for part, key in inside(data) if isinstance(part[key], dict) and key not in NAMED]
    assert len(parts) > 30
    for part in (data, *parts):
        part["more"] = 1
        with pytest.raises(ValueError, match=r"more|none of"):
            from_data(Report, data)
        del part["more"]
    assert from_data(Report, data) == reports["full"], "all is in place again"


def test_a_value_of_another_type_is_refused(reports: dict[str, Report]) -> None:
    data = as_data(reports["full"])
    places = [(part, key) for part, key in inside(data) if isinstance(part[key], str | int | float)]
    assert len(places) > 150
    for part, key in places:
        kept = part[key]
        part[key] = 1 if isinstance(kept, str) else "text"
        with pytest.raises(ValueError, match=r"no|optimizer"):
            from_data(Report, data)
        part[key] = kept
    assert from_data(Report, data) == reports["full"], "all is in place again"


@pytest.mark.parametrize("change", [
    {"format": 2}, {"format": True}, {"numbers_are": "measured"}, {"layers": {}}, {"input_shape": 4},
    {"optimizer": {"name": "lion", "lr": 0.1, "groups": {}}}, {"optimizer": 3}, {"memory": None},
])  # fmt: skip
def test_another_form_is_damage(reports: dict[str, Report], change: dict[str, Any], tmp_path: Path) -> None:
    data = as_data(reports["refused"]) | change
    assert damage(tmp_path, json.dumps(data).encode()) == f"{tmp_path / 'report.json'}: is damaged; compile again"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"null", b"\xff{}", b"[" * 100_000])
def test_what_is_no_report_is_damage(content: bytes, tmp_path: Path) -> None:
    assert damage(tmp_path, content) == f"{tmp_path / 'report.json'}: is damaged; compile again"


def damage(folder: Path, content: bytes) -> str:
    (folder / "report.json").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_report(folder)
    return str(caught.value)
