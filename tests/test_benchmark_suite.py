"""The benchmark suite without a clock: the arithmetic of turns, what is recorded, how goals are judged, the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks import backward, goals, page, sections, suite
from benchmarks.kernels import kind, summarise
from benchmarks.machine import Limits
from benchmarks.processes import Protocol, ask, run_block, take_turns
from benchmarks.profile import Row
from benchmarks.record import Record, as_text
from benchmarks.rounds import Ratio, mean_of_ratios, paired_ratio, ratio, spread
from benchmarks.rounds import summarise as summarise_blocks
from benchmarks.sections import Job, Options, Section
from benchmarks.step_time import PEERS, Setting

LIMITS = {"flops": 1e11, "bandwidth": 1e10}
MACHINE = {"cpu": "a CPU", "cores": 2, "date": "2026-11-16 12:00 UTC", "versions": {"python": "3.11"}}


def test_a_block_fills_its_time_and_runs_at_least_once() -> None:
    ticks = iter([0.0, 0.04, 0.07, 0.11])
    assert run_block(lambda: None, 0.1, lambda: next(ticks)) == pytest.approx([0.04, 0.03, 0.04])
    ticks = iter([0.0, 3.0])
    assert run_block(lambda: None, 0.1, lambda: next(ticks)) == [3.0]


def test_cold_is_the_first_run_of_a_block_and_warm_the_median_of_the_others() -> None:
    found = summarise_blocks([[0.009, 0.002, 0.004, 0.003], [0.008, 0.005]])
    assert (found["cold"], found["warm"], found["runs"]) == ([9, 8], [3, 5], [4, 2])
    assert (found["cold_ms"], found["ms"]) == (8.5, 4)


def test_a_run_that_fills_its_block_is_both_cold_and_warm() -> None:
    found = summarise_blocks([[2.5]])
    assert found["cold"] == found["warm"] == [2500]


def times(*milliseconds: float) -> dict[str, Any]:
    return summarise_blocks([[2e-3 * value, 1e-3 * value] for value in milliseconds])


def test_a_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    """The machine is half as fast in the last round: the rounds agree all the same."""
    found = ratio(times(30, 33, 60), times(10, 10, 20))
    assert asdict(found) == pytest.approx({"value": 3.3, "low": 3.0, "high": 3.3})
    assert ratio(times(30), times(10), "cold").value == pytest.approx(3)


def test_spread_is_quartiles_from_five_values_on() -> None:
    assert spread([4, 1, 2, 3]) == (1, 4)
    assert spread([1, 2, 3, 4, 100]) == (2, 4)


def test_paired_rounds_do_not_mind_a_machine_that_changes() -> None:
    untuned, tuned = times(12.5, 12.5, 25, 25, 25), times(10, 10, 10, 20, 20)  # a change in the third round
    found = paired_ratio(untuned, tuned)
    assert (found.value, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25))
    assert ratio(untuned, tuned).value == pytest.approx(2.5)


def test_means_of_ratios_are_geometric() -> None:
    found = mean_of_ratios([Ratio(2, 1, 4), Ratio(8, 4, 9)])
    assert asdict(found) == pytest.approx({"value": 4, "low": 2, "high": 6})


def test_phases_add_up_to_more_than_the_operation_as_one() -> None:
    limits = Limits(1e11, 1e10)
    for shape in backward.SHAPES:
        for r in (2, 4):
            phases = backward.phase_limits(shape, 32, r, True, limits)
            assert list(phases) == ["patch mean", "channel mix", "spread", "weight gradient"]
            assert sum(phases.values()) >= backward.limit(shape, 32, r, True, limits)
            assert "spread" not in backward.phase_limits(shape, 32, r, False, limits)


def _prepare_peer(settings: dict[str, Any], scratch: Path) -> Any:
    if settings["name"] == "refuses":
        raise ValueError("it has no dilation\nand more")
    runs: list[int] = []

    def run() -> None:
        runs.append(0)
        if settings["name"] == "breaks" and len(runs) > 1:
            raise RuntimeError("out of memory")

    return run, {"name": settings["name"], "scratch": str(scratch)}


@pytest.mark.slow
def test_peers_take_turns_and_failures_are_named() -> None:
    names = ("first", "refuses", "breaks", "second")
    protocol = Protocol(most=3, least=2, block_seconds=0, starting=2)
    found = take_turns(_prepare_peer, {name: {"name": name} for name in names}, protocol)
    assert found.failed == {"refuses": "ValueError: it has no dilation", "breaks": "RuntimeError: out of memory"}
    assert found.times.keys() == found.facts.keys() == {"first", "second"}
    assert found.times["first"]["runs"] == [1, 1, 1]
    assert not Path(found.facts["first"]["scratch"]).exists()


def test_no_further_round_begins_when_the_time_is_over() -> None:
    found = take_turns(_prepare_peer, {"first": {"name": "first"}}, Protocol(most=9, least=2, seconds=0))
    assert len(found.times["first"]["runs"]) == 2


def test_asking_gives_facts_and_no_times() -> None:
    found = ask(_prepare_peer, {name: {"name": name} for name in ("first", "refuses")}, starting=2)
    assert found.facts["first"]["name"] == "first"
    assert found.failed.keys() == {"refuses"}
    assert not found.times


def test_json_keeps_lists_of_numbers_on_one_line() -> None:
    value = {"a": [1.5, 2, -3e-7], "b": [{"c": [1]}, {"d": []}], "names": ["x, y", "z"]}
    text = as_text(value)
    assert json.loads(text) == value
    assert '"a": [1.5, 2, -3e-07]' in text
    assert '"names": ["x, y", "z"]' in text


@pytest.fixture
def counted_sections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two sections of two rows whose runs are only noted."""
    ran: list[str] = []

    def jobs(name: str) -> list[Job]:
        def run(key: str) -> dict[str, Any]:
            ran.append(f"{name} {key}")
            if f"{name} {key}" in broken:
                raise ValueError("broken")
            return {"value": len(ran)}

        return [Job(key, 1, lambda key=key: run(key)) for key in ("a", "b")]  # type: ignore[misc]

    broken = {"one b"}
    made = {name: Section(lambda _, name=name: jobs(name)) for name in ("one", "two")}  # type: ignore[misc]
    monkeypatch.setattr(suite, "SECTIONS", made)
    monkeypatch.setattr(suite, "describe_machine", lambda: dict(MACHINE))
    yield ran
    broken.clear()


def test_a_section_is_redone_without_touching_the_others(counted_sections: list[str], tmp_path: Path) -> None:
    path, options = tmp_path / "out" / "benchmarks.json", Options(tmp_path)
    suite.run(Record(path), ["one", "two"], options, resume=False)
    before = Record(path).sections
    assert before["one"]["planned"] == ["a", "b"]
    assert before["one"]["rows"]["b"]["failed_row"] == "ValueError: broken"
    suite.run(Record(path), ["two"], options, resume=False)
    after = Record(path).sections
    assert after["one"] == before["one"]
    assert [row["value"] for row in after["two"]["rows"].values()] == [5, 6]


def test_resuming_runs_what_is_missing_or_failed(counted_sections: list[str], tmp_path: Path) -> None:
    path, options = tmp_path / "benchmarks.json", Options(tmp_path)
    suite.run(Record(path), ["one", "two"], options, resume=False)
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["sections"]["two"]["rows"]["a"]
    path.write_text(json.dumps(content), encoding="utf-8")
    counted_sections.clear()
    suite.run(Record(path), ["one", "two"], options, resume=True)
    assert counted_sections == ["one b", "two a"]
    assert list(Record(path).sections["two"]["rows"]) == list(Record(path).sections["two"]["planned"])


def test_rows_of_another_machine_are_not_kept(
    counted_sections: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "benchmarks.json"
    suite.run(Record(path), ["two"], Options(tmp_path), resume=False)
    monkeypatch.setattr(suite, "describe_machine", lambda: {**MACHINE, "date": "later"})
    suite.run(Record(path), ["two"], Options(tmp_path), resume=True)
    assert len(counted_sections) == 2
    monkeypatch.setattr(suite, "describe_machine", lambda: {**MACHINE, "cpu": "another"})
    suite.run(Record(path), ["two"], Options(tmp_path), resume=True)
    assert len(counted_sections) == 4


def test_the_suite_covers_every_goal_and_names_each_row_once(tmp_path: Path) -> None:
    for quick in (False, True):
        for section in sections.SECTIONS.values():
            keys = [job.key for job in section.jobs(Options(tmp_path, quick))]
            assert keys
            assert len(set(keys)) == len(keys)
    keys = {job.key for job in sections.SECTIONS["steps"].jobs(Options(tmp_path))}
    assert {f"{model}, batch {batch}" for model in sections.GOAL_MODELS for batch in (1, 8, 32)} <= keys
    full = [job.key for job in sections.SECTIONS["steps"].jobs(Options(tmp_path, full=True))]
    assert len(full) == len(sections.MODELS) * len(sections.BATCHES)
    assert all(sections.peers_of(Setting(model, 8), Options(tmp_path)) == tuple(PEERS) for model in sections.MODELS)


def _step(setting: Setting, **milliseconds: float) -> dict[str, Any]:
    peers = {name: times(value, value, value) for name, value in milliseconds.items()}
    for name in peers.keys() & {"gfcompile", "gfcompile_exact"}:
        peers[name] |= {"compile_seconds": 20.0, "library_bytes": 300_000, "artifact_bytes": 60_000_000}
    return {"setting": asdict(setting), "peers": peers, "failed": {}, "differs": []}


def _shape(factor: float) -> dict[str, Any]:
    peers = {"exact": 300.0, "exact_channels_last": 240.0, "full r=2": 10, "full r=4": 4, "grid r=2": 5, "grid r=4": 2}
    peers |= {f"{name} r={r}": 30.0 for name in backward.PUBLISHED for r in (2, 4)}
    scaled = {name: value * (factor if name.startswith("exact") else 1) for name, value in peers.items()}
    return {"batch": 32, "peers": {name: times(value, value) for name, value in scaled.items()}, "limits": LIMITS}


def _everything(exact: float = 1.0) -> dict[str, Any]:
    """A record with all sections; exact peers take `exact` times as long."""
    slow = {"eager": 40 * exact, "eager_channels_last": 30 * exact, "torch_compile": 26 * exact}
    filters = {"published": 25.0, "published_channels_last": 22.0, "published_compile": 23.0}
    ours = {"gfcompile": 10.0, "gfcompile_exact": 20.0}
    steps = {
        f"{model}, batch {batch}": _step(Setting(model, batch), **slow, **filters, **ours)
        for model in ("resnet18", "mobilenet_v2")
        for batch in (1, 8, 32)
    }
    steps["mcunet, batch 1"] = _step(Setting("mcunet", 1), eager=4, published_channels_last=3, gfcompile=1)
    steps["mcunet, batch 1"]["failed"] = {"published": "ValueError: no"}
    growth = {
        key: _step(setting, eager=9, published_channels_last=6, gfcompile=2)
        for key, setting in sections.growth_settings(Options(Path())).items()
    }
    forward = {
        f"{model}, batch 8": _step(Setting(model, 8, forward=True), **slow, gfcompile=10) for model in goals.FORWARD
    }
    kernel = {"kernel": "fused_patch_mean3_add", "calls": 1, "ms": 1.0, "share": 0.1, "of_limit": 0.2}
    profiled = {
        "setting": asdict(Setting()),
        "limits": LIMITS,
        "calls": 9,
        "ms": 10.0,
        "limit_ms": 6.0,
        "kernels": [{**kernel, "kernel": "conv2d", "share": 0.89, "of_limit": 0.8}, kernel],
        "small": {"kernels": 7, "share": 0.01},
    }
    memory = {
        "counted": {"arena_bytes": 30 * 2**20, "scratch_bytes_a_thread": 2**20},
        "measured": {"exact": {"peak_bytes": 50 * 2**20}, "filter": {"peak_bytes": 40 * 2**20}},
        "ratios": {"exact": 0.6, "filter": 0.75},
    }
    rows = {
        "shapes": {f"{c}@{h}x{w}": {**_shape(exact), "shape": [c, h, w]} for c, h, w in backward.SHAPES},
        "steps": steps,
        "forward": forward,
        "growth": growth,
        "memory": {"resnet18, batch 8": memory},
        "kernels": {"resnet18, batch 8": profiled},
    }
    return {
        name: {"machine": MACHINE, "quick": False, "planned": list(some), "rows": some} for name, some in rows.items()
    }


def test_goals_are_judged_by_their_bars() -> None:
    met = {verdict.goal: verdict.met for verdict in goals.judge(_everything())}
    assert None not in met.values()
    assert met["One layer's backward, r=2, gradient spread to every pixel: 22x PyTorch's exact one"]  # 240 / 10
    assert met["One layer's backward, r=4, gradient spread to every pixel: 55x PyTorch's exact one"]  # 240 / 4
    assert met["Filtered step, ResNet-18, batch 8: 2.2x the fastest peer that filters"]  # 22 / 10
    assert met["Filtered step, ResNet-18, batch 8: 3.5x exact eager"]  # 40 / 10
    assert met["Exact step, ResNet-18, batch 8: 1.3x torch.compile"]  # 26 / 20
    assert met["Forward pass, ResNet-18, batch 8: 2x PyTorch eager, channels last"]  # 30 / 10
    assert met["ResNet-18 compiled, without tuning, in under 60 s"]
    assert not met["No kernel under 35% of its own limit"]


def test_goals_that_are_missed_are_said_to_be() -> None:
    """Exact peers at half the time: what is compared with them falls short, what is compared with filters does not."""
    met = {verdict.goal: verdict.met for verdict in goals.judge(_everything(exact=0.5))}
    assert not met["One layer's backward, r=2, gradient spread to every pixel: 22x PyTorch's exact one"]
    assert met["Filtered step, ResNet-18, batch 8: 2.2x the fastest peer that filters"]
    assert not met["Filtered step, ResNet-18, batch 8: 3.5x exact eager"]
    assert not met["Filtered step, MobileNetV2, batch 8: 2x the fastest peer"]  # 13 / 10, of torch.compile
    assert not met["Exact step, ResNet-18, batch 8: 1.3x torch.compile"]


def test_goals_without_figures_are_neither_met_nor_missed() -> None:
    """A mean over some of the shapes is no answer either."""
    record = _everything()
    del record["shapes"]["rows"]["64@56x56"], record["steps"], record["forward"], record["kernels"]
    assert {verdict.met for verdict in goals.judge(record)} == {None}
    assert all(verdict.found is None for verdict in goals.judge({}))


def _render(folder: Path, recorded: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    (folder / page.JSON).write_text(json.dumps({"sections": recorded}), encoding="utf-8")
    page.render(folder)
    return (folder / page.MARKDOWN).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_has_every_section_and_the_same_plots_each_time(tmp_path: Path) -> None:
    text = _render(tmp_path / "first", _everything())
    for words in (
        "a CPU, 2 cores",
        "| Filtered step, ResNet-18, batch 8: 3.5x exact eager | 4.00x | 4.00 to 4.00 | met |",
        "| geometric mean |  | 24.0 (24.0..24.0) |",
        "| ResNet-18 | 10 (20) | 4.00 (4.00..4.00) |",
        "MCUNet-like, batch 1: published filter, eager failed: ValueError: no",
        "Left out to stay within half an hour: ResNet-34, batch 1",
        "torch.compile's in MCUNet-like, batch 1",
        "| patch_mean | `fused_patch_mean3_add` | 10.0% | 20% | not known yet |",
        "7 kernels of under 0.5% of the step each: 1.0% together",
        "| ResNet-18, batch 8 | 30.0 | 1.0 | 50.0 | 40.0 | 0.60 | 0.75 |",
        "1 below, listed; the reason is not known of 1",
        "| ResNet-18, batch 8 | 20 | 20 | 0.29 | 57.2 |",
        "shared virtual machine",
        "| patch edge r 7 | 2 |",
    ):
        assert words in text
    assert "Not measured yet" not in text
    _render(tmp_path / "second", _everything())
    plots = sorted(path.name for path in (tmp_path / "first" / page.PLOTS).iterdir())
    assert plots == ["growth.svg", "kernels.svg", "shapes.svg", "steps.svg"]
    for name in plots:
        first, second = ((tmp_path / folder / page.PLOTS / name).read_bytes() for folder in ("first", "second"))
        assert first == second
        assert f"{page.PLOTS}/{name}" in text


@pytest.mark.slow
def test_an_unfinished_page_says_what_is_missing(tmp_path: Path) -> None:
    recorded = _everything()
    for name in ("shapes", "forward", "memory", "kernels"):
        del recorded[name]
    del recorded["steps"]["rows"]["resnet18, batch 32"]
    recorded["steps"]["rows"]["mcunet, batch 1"] = {"failed_row": "RuntimeError: out of memory"}
    recorded["growth"]["machine"] = {**MACHINE, "date": "2026-11-17 12:00 UTC"}
    text = _render(tmp_path, recorded)
    assert "Not measured yet. `python -m benchmarks.suite --only shapes --resume` does it." in text
    assert "Not measured yet: resnet18, batch 32. `python -m benchmarks.suite --only steps --resume` does it." in text
    assert "Failed: mcunet, batch 1: RuntimeError: out of memory." in text
    assert "| not measured |" in text
    assert "* steps: a CPU, 2 cores, 2026-11-16" in text
    assert "* growth: a CPU, 2 cores, 2026-11-17" in text
    assert "Nothing is recorded yet." in _render(tmp_path, {})


def test_kernels_are_summed_by_name_and_small_ones_together() -> None:
    rows = [Row("conv2d", 4.0, int(1e11), 1), Row("conv2d", 4.0, int(1e11), 1), Row("add", 1.98, 1, int(1e10))]
    found = summarise([*rows, Row("tiny", 0.02, 1, 1)], Limits(**LIMITS))
    assert [(each["kernel"], each["calls"], each["of_limit"]) for each in found["kernels"]] == [
        ("conv2d", 2, 0.25),
        ("add", 1, 0.505),
    ]
    assert found["small"] == {"kernels": 1, "share": 0.002}
    assert found["limit_ms"] == pytest.approx(3000, abs=0.1)


def test_kinds_of_kernels() -> None:
    assert kind("fused_winograd_conv2d3_add") == "winograd"
    assert kind("fused_depthwise_conv2d12_add24_tir_clip15") == "depthwise_conv2d"
    assert kind("channel_mix_weight2") == "channel_mix_weight"
    assert kind("fused_something7") == "something"


@pytest.mark.coverage
def test_a_tiny_real_row(tmp_path: Path) -> None:
    """One shape, really measured, recorded and shown."""
    record = Record(tmp_path / page.JSON)
    suite.run(record, ["shapes"], Options(tmp_path, quick=True), resume=False)
    page.render(tmp_path)
    text = (tmp_path / page.MARKDOWN).read_text(encoding="utf-8")
    assert "| 16@9x11 |" in text
    assert "A quick run on tiny settings" in text
