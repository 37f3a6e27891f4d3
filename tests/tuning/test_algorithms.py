"""Winograd or the plain sum by trials: every way computes the same, and the compiler follows what was surely faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from torch import nn

from gfcompile.codegen.kernels.open_convolution import compute_by, read_open, write_open
from gfcompile.codegen.tuned.algorithms import ALGORITHMS, choose_by
from gfcompile.codegen.tuned.database import Database, Databases
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.record import Record
from gfcompile.codegen.tuned.tasks import Task, read_tasks
from gfcompile.frontend.losses import resolve_loss
from gfcompile.geometry.layouts import WeightLayout
from gfcompile.geometry.winograd import Convolution, choose_edge
from gfcompile.graph.open_convolutions import find_open
from gfcompile.job import Job, Lowered
from gfcompile.report.tuning import make_tuning, tuning_lines
from gfcompile.settings.schema import Request
from gfcompile.stages import lower_job
from gfcompile.tuning import in_step
from gfcompile.tuning.builders import BuildPool, Built
from gfcompile.tuning.in_step import reject_slower_algorithms
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.messages import head_text, summary_text
from gfcompile.tuning.procedure import Procedure
from gfcompile.tuning.session import MOST_ERROR
from gfcompile.tuning.space import Candidate, draw, draw_untuned, list_templates
from gfcompile.tuning.status import Budget
from gfcompile.tuning.trial import build_trial, compile_for_trial
from tests.lean import lean_compile, place_lean
from tests.selection import often
from tests.tolerances import LOSS, TRAINING_STEPS, assert_near
from tests.tuning.folders import write_folder
from tests.tuning.forged import NATIVE
from tests.tuning.records import fill, trial
from tests.tuning.stand_ins import measured, stand_in

FROZEN = Convolution((2, 13, 14), (32, 48), (1, 0), is_frozen=True)
TRAINED = Convolution((2, 12, 12), (32, 32), (1, 1), is_frozen=False)
SHAPE = (2, 32, 12, 12)


def chosen(convolution: Convolution, template: str, ratio: float = 1.5) -> Record:
    """A trial in which this algorithm was faster."""
    machine = target_key(NATIVE)
    return trial(kernel=convolution.key, name=convolution.key, target=machine, template=template, ratio=ratio)


def follow(*records: Record) -> Databases:
    return Databases((Database(records=list(records)),))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


@pytest.fixture(scope="module")
def job() -> Job:
    return Job(net(), (torch.zeros(SHAPE),), resolve_loss("cross_entropy"), Request(layers=1))


@pytest.fixture(scope="module")
def counted(job: Job) -> Lowered:
    return lower_job(job)


def ways(lowered: Lowered) -> list[int | None]:
    return [site.edge for site in find_open(lowered.steps["train"])]


# ---- one convolution


def test_its_function_says_which_it_is() -> None:
    for convolution in (FROZEN, TRAINED):
        function = tvm.ir.load_json(tvm.ir.save_json(write_open(convolution)))
        assert read_open(function) == convolution
        assert kernel_hash(function) == convolution.key
    assert read_open(compute_by(FROZEN, None).function) is None
    assert FROZEN.key == "conv 3x3 2x13x14 32to48 padding 1x0 frozen"
    assert TRAINED.key == "conv 3x3 2x12x12 32to32 padding 1x1 trained"


@pytest.mark.slow
@pytest.mark.parametrize("template", ALGORITHMS)
@pytest.mark.parametrize("convolution", [FROZEN, TRAINED], ids=["frozen", "trained"])
def test_every_algorithm_is_the_convolution(convolution: Convolution, template: str) -> None:
    """Against PyTorch in float64. Weights that are known beforehand come transformed."""
    drawn = draw(write_open(convolution), NATIVE, Candidate(template))
    rng = np.random.default_rng(0)
    x_shape, _, y_shape = ([int(size) for size in each.shape] for each in write_open(convolution).params)
    x = rng.standard_normal(x_shape).astype("float32")
    w = rng.standard_normal((convolution.channels[1], convolution.channels[0], 3, 3)).astype("float32")
    operand = WeightLayout.for_conv(list(w.shape), 1).pack(torch.tensor(w)).numpy()
    assert (drawn.prepare is not None) == (convolution.is_frozen and template != "plain")
    if drawn.prepare is not None:
        operand = call(drawn.prepare, [operand])
    y = call(drawn.function, [x, operand])
    image = torch.tensor(x).double().permute(0, 3, 1, 2)
    expected = torch.conv2d(image, torch.tensor(w).double(), padding=convolution.padding).permute(0, 2, 3, 1).numpy()
    assert list(y.shape) == y_shape == list(expected.shape)
    assert np.abs(y - expected).max() <= 2e-5 * np.abs(expected).max()


def call(function: tvm.tirx.PrimFunc, arrays: list[np.ndarray]) -> np.ndarray:
    out = tvm.runtime.tensor(np.full([int(size) for size in function.params[-1].shape], np.nan, "float32"))
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    tvm.compile(module, tvm.target.Target(NATIVE.tvm))["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("template", often(ALGORITHMS, ["winograd-4"]))
def test_a_trial_compares_algorithms_on_the_same_weights(template: str, tmp_path: Path) -> None:
    function = write_open(FROZEN)
    drawn, untuned = draw(function, NATIVE, Candidate(template)), draw_untuned(function, NATIVE)
    assert untuned.candidate.template == "winograd-4"
    reference = compile_for_trial(untuned.function, "reference", NATIVE, tmp_path, untuned.prepare)
    built = build_trial(function, drawn.function, reference, NATIVE, tmp_path, prepare=drawn.prepare)
    assert LocalRunner(NATIVE, 2, 1e-4).run(built, 60).error <= MOST_ERROR


@pytest.mark.parametrize("template", often(ALGORITHMS, ["winograd-4"]))  # with weights to prepare
def test_a_pool_builds_every_algorithm(template: str, tmp_path: Path) -> None:
    with BuildPool(NATIVE, 1, tmp_path) as pool:
        pool.submit(template, str(tvm.ir.save_json(write_open(FROZEN))), Candidate(template))
        ((_, built),) = pool
    assert isinstance(built, Built)
    assert built.candidate.template == template
    assert LocalRunner(NATIVE, 2, 1e-4).run(built.path, 60).error <= MOST_ERROR


@pytest.mark.slow
def test_spaces_begin_with_what_is_counted() -> None:
    few = Convolution((1, 7, 7), (512, 512), (1, 1), is_frozen=False)
    for convolution in (FROZEN, few):
        names = [drawn.candidate.template for drawn in list_templates(write_open(convolution), NATIVE)]
        assert sorted(names) == sorted(ALGORITHMS)
        assert ALGORITHMS[names[0]] == choose_edge(convolution)


# ---- what the compiler follows


def test_counting_decides_where_no_trial_does() -> None:
    assert choose_by(follow(), NATIVE)(TRAINED) == choose_edge(TRAINED) == 4
    slower, other = chosen(TRAINED, "plain", ratio=1.0), chosen(FROZEN, "plain")
    unknown = chosen(TRAINED, "fourier")
    for record in (slower, other, unknown):
        assert choose_by(follow(record), NATIVE)(TRAINED) == 4
    assert choose_by(follow(chosen(TRAINED, "plain")), NATIVE)(TRAINED) is None
    assert choose_by(follow(chosen(TRAINED, "winograd-2")), NATIVE)(TRAINED) == 2


@pytest.mark.slow
def test_a_step_computes_its_convolutions_as_trials_say(job: Job, counted: Lowered) -> None:
    assert ways(counted) == [4, 4]
    frozen = Convolution(TRAINED.size, TRAINED.channels, TRAINED.padding, is_frozen=True)
    known = follow(chosen(TRAINED, "plain"), chosen(frozen, "winograd-2"))
    lowered = lower_job(job, algorithms=choose_by(known, NATIVE))
    assert ways(lowered) == [2, None]
    found = make_tuning(place_lean(lowered, NATIVE, tuning=known))
    assert {row.convolution: row.algorithm for row in found.algorithms} == {
        TRAINED.key: "plain",
        frozen.key: "winograd-2",
    }
    assert f"{TRAINED.key}: plain, measured to be 1.50x faster" in tuning_lines(found)
    assert make_tuning(place_lean(counted, NATIVE)).algorithms == ()


@pytest.mark.slow
def test_the_numbers_stay(tmp_path: Path) -> None:
    """Compiled steps of one network, by trials that found plain sums or the smaller tiles faster."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(SHAPE).astype("float32"), rng.integers(0, 5, SHAPE[0])
    results = {}
    for template in ("plain", "winograd-2"):
        db = tmp_path / f"{template}.jsonl"
        fill(db, chosen(TRAINED, template))
        out = tmp_path / f"{template.replace('-', '_')}_step"
        with lean_compile(net(), (torch.zeros(SHAPE),), layers=1, lr=0.05, tuning=db, out=out) as step:
            results[template] = [step.train(x, y) for _ in range(4)], step.state_dict()["2.weight"].numpy().copy()
    losses, weights = results["plain"]
    for template, (found, trained) in results.items():
        assert_near(found, losses, LOSS, template)
        assert_near(trained, weights, TRAINING_STEPS, template)
    assert any(results["winograd-2"][1].ravel() != weights.ravel())  # it was another way


# ---- the whole procedure


@pytest.mark.slow
def test_algorithms_come_first_and_the_kernels_are_those_of_the_chosen_ones(
    job: Job, counted: Lowered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine on which plain sums are twice as fast, and nothing else is gained."""
    runner = stand_in(monkeypatch, lambda candidate, _: measured(2.0 if candidate.template == "plain" else 1.0))
    monkeypatch.setattr("gfcompile.tuning.procedure.reject_slower", lambda *_: [])
    raced: list[tuple[list[int | None], list[int | None]]] = []

    def reject(before: Lowered, after: Lowered, *_: object) -> list[tuple[str, float]]:
        raced.append((ways(before), ways(after)))
        return []

    monkeypatch.setattr("gfcompile.tuning.procedure.reject_slower_algorithms", reject)
    database = Database()
    tasks = place_lean(counted, NATIVE).tasks
    procedure = Procedure(tasks, NATIVE, database, runner, 1, counted)
    assert head_text(procedure, Path("db"), Budget(80)).startswith(
        f"tuning {len(procedure.status.kernels)} kernels for native, 80 trials, "
        "first the algorithms of convolutions of 2 shapes; trials are measured"
    )
    procedure.run(Budget(trials=80))
    assert procedure.lowered is not None
    assert ways(procedure.lowered) == [None, None]
    assert raced == [([4, 4], [None, None])]
    kernels = [kernel.task.name for kernel in procedure.status.kernels]
    assert not any("winograd" in name for name in kernels)
    assert any("conv2d" in name for name in kernels)
    trials = procedure.algorithms.status.trials
    assert 0 < trials <= 20
    assert trials + procedure.status.trials <= 80
    said = summary_text(procedure, Path("db"))
    assert f"{TRAINED.key}: plain, 2.00x faster than winograd-4" in said.splitlines()
    assert f"{trials + procedure.status.trials} trials in " in said


@pytest.mark.coverage
def test_kernels_begin_with_what_was_best_for_their_convolutions(
    counted: Lowered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine on which Winograd's filtering likes one number of turns."""
    wanted = 8

    def likes(candidate: Candidate) -> bool:  # no other algorithm: it would be raced inside the step, by the clock
        return candidate.decisions.get("turns") == wanted and candidate.template != "winograd-2"

    runner = stand_in(monkeypatch, lambda candidate, _: measured(1.5 if likes(candidate) else 1.0))
    monkeypatch.setattr("gfcompile.tuning.procedure.reject_slower", lambda *_: [])
    database = Database()
    procedure = Procedure(place_lean(counted, NATIVE).tasks, NATIVE, database, runner, 1, counted)
    procedure.run(Budget(trials=80))
    assert {kernel.template for kernel in procedure.algorithms.status.kernels} == {"winograd-4"}
    kernels = [kernel.task for kernel in procedure.status.kernels if "winograd" in kernel.task.name]
    assert len(kernels) == 2
    for task in kernels:
        first = next(record for record in database.records if record.kernel == task.kernel)
        assert first.decisions["turns"] == wanted


@pytest.mark.slow
def test_an_artifact_has_its_open_convolutions(counted: Lowered, tmp_path: Path) -> None:
    tasks = place_lean(counted, NATIVE).tasks
    found = read_tasks(write_folder(tmp_path / "step", tasks))
    assert [task.kernel for task in found if task.is_open] == [task.kernel for task in tasks if task.is_open]
    assert {task.kernel for task in found if task.is_open} == {
        site.convolution.key for site in find_open(counted.steps["train"])
    }


@pytest.mark.slow
def test_no_winograd_leaves_nothing_open(job: Job) -> None:
    plain = Job(job.module, job.example, job.loss, job.request, winograd=False)
    lowered = lower_job(plain)
    assert ways(lowered) == [None, None]
    assert not any(task.is_open for task in place_lean(lowered, NATIVE).tasks)


# ---- inside the step


@pytest.fixture(scope="module")
def decided(job: Job) -> Lowered:
    return lower_job(job, algorithms=choose_by(follow(chosen(TRAINED, "plain")), NATIVE))


@pytest.mark.slow
def test_steps_are_compared_by_layer(counted: Lowered, decided: Lowered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_step, "place", place_lean)
    turns = in_step._race_by_weights(counted, decided, NATIVE, follow())
    assert len(turns) == in_step._STEPS
    for ours, theirs in turns:
        assert ours.keys() == theirs.keys() >= {"0.weight", "2.weight"}
        assert all(seconds > 0 for seconds in (*ours.values(), *theirs.values()))


@pytest.mark.parametrize(("seconds", "ratio"), [(2.0, 0.5), (0.5, None)])
def test_what_makes_a_layer_slower_is_taken_back(
    counted: Lowered, decided: Lowered, monkeypatch: pytest.MonkeyPatch, seconds: float, ratio: float | None
) -> None:
    turn = ({"0.weight": 9.0, "2.weight": seconds}, {"0.weight": 1.0, "2.weight": 1.0})
    monkeypatch.setattr(in_step, "_race_by_weights", lambda *_: [turn] * 3)
    database = Database(records=[chosen(TRAINED, "plain"), chosen(TRAINED, "winograd-2", ratio=1.3)])
    rejected = reject_slower_algorithms(counted, decided, NATIVE, database)
    assert rejected == ([(TRAINED.key, ratio)] if ratio else [])  # the other layer is computed as before
    assert choose_by(Databases((database,)), NATIVE)(TRAINED) == (4 if ratio else None)


def test_a_task_is_open_or_a_kernel() -> None:
    function = write_open(FROZEN)
    assert Task(FROZEN.key, FROZEN.key, function, 1).is_open
    assert not Task("0", "conv", compute_by(FROZEN, None).function, 1).is_open
