"""A session with a runner that is told what to measure: what it tries, keeps, believes, and when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tvm import tirx

from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.errors import UserError
from gfcompile.progress import silent
from gfcompile.targets import Target, find_target
from gfcompile.tuning import session as session_module
from gfcompile.tuning import status as status_module
from gfcompile.tuning.builders import Make
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.session import Session, compare
from gfcompile.tuning.space import Candidate, draw, list_templates
from gfcompile.tuning.status import Budget, Status
from gfcompile.tuning.trial import Measurement, TrialFailed
from tests.tuning.kernels import convolution, product, scaled
from tests.tuning.makers import ABORTING_TURNS, WRONG_TURNS, make_flawed
from tests.tuning.records import trial
from tests.tuning.stand_ins import SECONDS, Runner, Table, measured, stand_in

NATIVE = find_target("native")
USUAL = list_templates(product(), NATIVE)[0].candidate


def same_speed(_candidate: Candidate, _before: int) -> Measurement:
    return measured(1.0)


def by_turns(ratios: dict[int, float]) -> Table:
    return lambda candidate, _: measured(ratios.get(int(candidate.decisions.get("turns", 0)), 1.0))


Start = Callable[..., tuple[Session, Runner]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """A session of some kernels that builds nothing."""

    def start(
        table: Table,
        tasks: Sequence[Task],
        database: Database,
        show: Callable[[Status], None] = silent,
        kind: str = "measured",
        make: Make = draw,
    ) -> tuple[Session, Runner]:
        runner = stand_in(monkeypatch, table, kind)
        return Session(tasks, NATIVE, database, runner, 1, show, make), runner

    return start


def task(function: tirx.PrimFunc, name: str = "product", calls: int = 1) -> Task:
    return Task(kernel_hash(function), name, function, calls)


ONE = [task(product())]
KEYS = {"kernel": ONE[0].kernel, "target": target_key(NATIVE)}


def with_turns(turns: int) -> Candidate:
    return Candidate(USUAL.template, {**USUAL.decisions, "turns": turns})


def key_of(record: Any) -> object:
    return Candidate(record.template, record.decisions).key


def test_trials_are_the_budget(start: Start) -> None:
    database = Database()
    session, runner = start(same_speed, ONE, database)
    session.run(Budget(trials=11))
    assert session.status.trials == len(database.records) == 11
    assert len({key_of(record) for record in database.records}) == 11
    assert [each.key for each in runner.runs[:1]] == [USUAL.key]  # untuned: of no record
    assert USUAL.key not in {key_of(record) for record in database.records}
    record = database.records[0]
    assert (record.name, record.kind, record.failure) == ("product", "measured", None)
    assert (record.seconds, record.reference_seconds, record.ratio, record.spread) == (SECONDS, SECONDS, 1.0, 0.0)
    assert record.machine == {"cpu": "a table"}


def test_an_interrupt_that_was_only_noted_ends_the_session_behind_its_batch(start: Start) -> None:
    sessions: list[Session] = []

    def table(candidate: Candidate, before: int) -> Measurement:
        sessions[0].status.interrupted = True
        return measured(1.0)

    session, runner = start(table, ONE, Database())
    sessions.append(session)
    session.run(Budget(trials=100))
    assert len(runner.runs) == 1  # the untuned kernel's


@pytest.mark.slow
def test_time_is_the_budget(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    for module in (session_module, status_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def table(candidate: Candidate, before: int) -> Measurement:
        clock[0] += 1
        return measured(1.0)

    session, runner = start(table, ONE, Database())
    session.run(Budget(seconds=12))
    assert len(runner.runs) == 1 + 2 * 8  # a batch that has begun is ended
    session.run(Budget(trials=session.status.trials + 3, seconds=1e6))
    assert len(runner.runs) == 1 + 2 * 8 + 3


@pytest.mark.slow
def test_without_a_budget_it_ends_when_nothing_better_is_found(start: Start) -> None:
    session, _ = start(same_speed, ONE, Database())
    session.run(Budget())
    assert session.status.trials == 4 * 8
    assert session.status.ratio == 1.0


def test_kernels_without_choices_or_calls_are_left_alone(start: Start) -> None:
    tasks = [task(scaled(2.0), "scaled"), task(product(), calls=0)]
    session, runner = start(same_speed, tasks, Database())
    session.run(Budget(trials=4))
    assert session.status.kernels == []
    assert runner.runs == []


@pytest.mark.slow
def test_what_takes_no_time_is_left_alone(start: Start) -> None:
    tasks = [task(product(), "long", calls=1000), task(convolution(), "short")]
    database = Database()
    session, _ = start(same_speed, tasks, database)
    session.run(Budget())
    assert {record.name for record in database.records} == {"long"}


@pytest.mark.parametrize("error", [0.5, float("inf"), float("nan")])
def test_a_wrong_result_never_counts(start: Start, error: float) -> None:
    """However fast it was; in one run of those that confirm it, too."""
    for wrong_run in (0, 3):
        database = Database()

        def table(candidate: Candidate, before: int, wrong_run: int = wrong_run) -> Measurement:
            wrong = candidate.decisions.get("turns") == 2
            return measured(9.0 if wrong else 1.0, error=error if wrong and before == wrong_run else 0.0)

        session, _ = start(table, ONE, database)
        session.status.kernels[0].search.hint(with_turns(2))
        session.run(Budget(trials=8))
        wrong = [record for record in database.records if record.decisions.get("turns") == 2]
        assert wrong
        text = f"wrong result: it differs by {error:.1e} of the largest value from the untuned kernel"
        assert {record.failure for record in wrong} == {text}
        assert wrong[0].name == "product"
        assert session.status.kernels[0].best is None
        assert session.status.kernels[0].failures == len(wrong)


def test_a_build_that_crashes_is_a_failure(start: Start) -> None:
    def make(function: tirx.PrimFunc, target: Target, candidate: Candidate) -> Any:
        drawn = draw(function, target, candidate)
        if drawn.candidate.decisions.get("turns") == 2:
            raise TrialFailed("the build crashed: SIGABRT")
        return drawn

    database = Database()
    session, _ = start(same_speed, ONE, database, make=make)
    session.status.kernels[0].search.hint(with_turns(2))
    session.run(Budget(trials=16))
    failed = [record for record in database.records if record.failure is not None]
    assert {record.failure for record in failed} == {"the build crashed: SIGABRT"}
    assert {record.decisions["turns"] for record in failed} == {2}
    assert (failed[0].seconds, failed[0].ratio, failed[0].spread) == (None, None, None)
    assert len(database.records) == 16


def test_a_faster_one_is_confirmed(start: Start) -> None:
    database = Database()
    session, runner = start(by_turns({8: 1.5}), ONE, database)
    session.status.kernels[0].search.hint(with_turns(8))
    session.run(Budget(trials=8))
    (kernel,) = session.status.kernels
    assert kernel.best is not None
    assert (kernel.best.ratio, kernel.best.spread) == (1.5, 0.0)
    assert runner.count(Candidate(kernel.best.template, kernel.best.decisions)) == 1 + 5
    assert session.status.ratio == pytest.approx(1.5)
    slow = [record for record in database.records if record.ratio == 1.0]
    assert all(runner.count(Candidate(record.template, record.decisions)) == 1 for record in slow)


def lucky_once(ratio: float) -> Table:
    """Fast in its first run."""
    return lambda candidate, before: measured(ratio if candidate.decisions.get("turns") == 8 and not before else 1.0)


def test_a_lucky_one_does_not_win(start: Start) -> None:
    database = Database()
    session, runner = start(lucky_once(3.0), ONE, database)
    session.status.kernels[0].search.hint(with_turns(8))
    session.run(Budget(trials=8))
    assert session.status.kernels[0].best is None
    assert runner.count(with_turns(8)) == 6
    assert {record.ratio for record in database.records} == {1.0}


def test_a_lucky_one_does_not_win_by_less_noise(start: Start) -> None:
    """What would be best is confirmed: of a single run, the noise between runs is not known."""
    best = trial(**KEYS, template="gemm", decisions=with_turns(1).decisions, ratio=1.4, spread=0.2)
    database = Database(records=[best])
    session, runner = start(lucky_once(1.3), ONE, database)
    session.status.kernels[0].search.hint(with_turns(8))
    session.run(Budget(trials=8))
    assert session.status.kernels[0].best == best
    assert runner.count(with_turns(8)) == 6


@pytest.mark.slow
def test_what_is_best_is_tried_on_kernels_that_are_alike(start: Start) -> None:
    tasks = [task(product(), "often", calls=100), task(product(2.0), "rare"), task(convolution(), "other")]
    database = Database()
    session, _ = start(by_turns({8: 1.5}), tasks, database)
    session.status.kernels[0].search.hint(with_turns(8))
    session.run(Budget())
    of = {name: [record for record in database.records if record.name == name] for name in ("often", "rare")}
    assert key_of(of["often"][0]) == key_of(of["rare"][0]) == with_turns(8).key


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "is_news"), [(1.5, True), (1.1, False)])
def test_what_gains_much_is_news_to_other_shapes_of_its_template(start: Start, ratio: float, is_news: bool) -> None:
    """Each takes of it what is an option there: the turns, and not a tile of other rows."""
    tasks = [task(product(), "often", calls=100), task(product(rows=7, columns=48), "other")]
    database = Database()
    session, _ = start(by_turns({8: ratio}), tasks, database)
    often, other = session.status.kernels
    assert often.usual.options != other.usual.options
    often.search.hint(with_turns(8))
    session.run(Budget())
    first = next(record for record in database.records if record.name == "other")
    assert (first.decisions["turns"] == 8) == is_news
    assert first.decisions["tile"] in other.usual.options["tile"]


@pytest.mark.slow
def test_a_session_goes_on_where_another_ended(start: Start) -> None:
    table = by_turns({8: 1.5, 5: 1.2})
    database = Database()
    first, _ = start(table, ONE, database)
    first.status.kernels[0].search.hint(with_turns(8))
    first.run(Budget(trials=20))
    best = first.status.kernels[0].best
    assert best is not None
    second, runner = start(table, ONE, database)
    (kernel,) = second.status.kernels
    assert kernel.known
    assert kernel.best == best
    assert kernel.seconds == SECONDS
    second.run(Budget(trials=20))
    assert USUAL.key not in {candidate.key for candidate in runner.runs}  # how long it takes is known
    keys = Counter(key_of(record) for record in database.records)
    assert len(keys) == len(database.records) == 40
    near = [record for record in database.records[20:] if record.decisions["turns"] == 8]
    assert len(near) >= 10  # neighbours of the best one


def test_trials_of_an_emulator_are_another_matter(start: Start) -> None:
    database = Database(records=[trial(**KEYS, template="gemm", decisions=with_turns(8).decisions, kind="emulated")])
    session, _ = start(by_turns({8: 1.5}), ONE, database)
    assert not session.status.kernels[0].known
    assert session.status.kernels[0].best is None
    emulated, _ = start(by_turns({8: 1.5}), ONE, database, kind="emulated")
    assert emulated.status.kernels[0].best == database.records[0]
    emulated.run(Budget(trials=4))
    assert {record.kind for record in database.records} == {"emulated"}


@pytest.mark.parametrize("changes", [{"template": "unheard of"}, {"decisions": {"tile": (7, 7)}}])
def test_records_that_mean_nothing_do_no_harm(start: Start, changes: dict[str, Any]) -> None:
    database = Database(records=[trial(**{**KEYS, "template": "gemm", **changes})])
    session, _ = start(same_speed, ONE, database)
    session.run(Budget(trials=8))
    assert len(database.records) == 9


@pytest.mark.slow
def test_a_candidate_that_comes_out_as_one_before_is_no_trial(start: Start) -> None:
    """A hint of another kernel may have an option that is none here."""
    database = Database()
    session, runner = start(same_speed, ONE, database)
    search = session.status.kernels[0].search
    for tile in ((7, 7), (5, 5)):
        search.hint(Candidate("gemm", {**USUAL.decisions, "tile": tile}))
        search.hint(Candidate("gemm", {**with_turns(8).decisions, "tile": tile}))
    session.run(Budget(trials=8))
    assert runner.count(USUAL) == 1  # untuned
    assert runner.count(with_turns(8)) == 1
    assert runner.pool is not None
    assert [candidate.key for candidate in runner.pool.left] == [USUAL.key]  # of no trial anything is left
    assert len({key_of(record) for record in database.records}) == len(database.records) == 8


def test_no_kernel_can_be_measured(start: Start) -> None:
    def table(candidate: Candidate, before: int) -> Measurement:
        raise TrialFailed("the trial crashed: SIGILL (Illegal instruction)")

    session, _ = start(table, [*ONE, task(convolution(), "conv")], Database())
    with pytest.raises(UserError) as refusal:
        session.run(Budget(trials=8))
    assert str(refusal.value) == (
        "tune: no kernel can be measured, even untuned; of the first: "
        "product: the trial crashed: SIGILL (Illegal instruction)"
    )


@pytest.mark.slow
def test_a_kernel_that_cannot_be_measured_stays_as_it_is(start: Start) -> None:
    def table(candidate: Candidate, before: int) -> Measurement:
        if candidate.template == "conv":
            raise TrialFailed("the trial hung")
        return measured(1.0)

    database = Database()
    session, _ = start(table, [task(convolution(), "conv"), *ONE], database)
    session.run(Budget())
    assert {record.name for record in database.records} == {"product"}


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 5, 13])
def test_an_interrupt_leaves_what_was_finished(start: Start, tmp_path: Path, finished: int) -> None:
    path = tmp_path / "trials.jsonl"

    def table(candidate: Candidate, before: int) -> Measurement:
        if len(runner.runs) == 1 + finished + 1:
            raise KeyboardInterrupt
        return measured(1.0)

    session, runner = start(table, ONE, Database.open(path))
    with pytest.raises(KeyboardInterrupt):
        session.run(Budget(trials=100))
    found = Database.open(path)
    assert found.problems == []
    # at the most, those that were waiting for their turn have been run as well
    assert len(found.records) >= finished
    keys = {candidate.key for candidate in runner.runs}
    assert {key_of(record) for record in found.records} <= keys


@pytest.mark.slow
def test_a_hot_machine_is_given_a_pause(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    heat, slept, clock = [85_000], [], [0.0]

    def sleep(seconds: float) -> None:
        slept.append(heat[0])
        clock[0] += seconds
        heat[0] -= 4_000

    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    session, runner = start(same_speed, ONE, Database())
    monkeypatch.setattr(runner, "read_machine", lambda: {"millicelsius": heat[0]})
    session.run(Budget(trials=16))
    assert slept == [85_000, 81_000, 77_000, 73_000]
    heat[0] = 79_000
    session.run(Budget(trials=24))
    assert len(slept) == 4  # warm, not hot
    assert session.status.trials == 24


def test_a_machine_that_stays_hot_is_not_waited_for_for_ever(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    sleep = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(session_module, "time", sleep)
    session, runner = start(same_speed, ONE, Database())
    monkeypatch.setattr(runner, "read_machine", lambda: {"millicelsius": 99_000})
    session.run(Budget(trials=16))
    assert session.status.trials == 16
    assert clock[0] == 2 * 120


def test_runs_that_confirm_count_as_one_value_each() -> None:
    assert compare([measured(1.5)]) == (1.5, 0.0)
    ratio, spread = compare([measured(1.5, 0.3)])
    assert ratio == pytest.approx(1.5)
    assert 0.1 < spread < 0.3
    ratio, spread = compare([measured(ratio, 0.5) for ratio in (1.2, 1.3, 1.6)])
    assert (ratio, spread) == (pytest.approx(1.3), pytest.approx(0.2))
    one = Measurement(0.0, (1.0,), (2.0,))
    assert compare([one]) == (2.0, 2.0)  # any


@pytest.mark.slow
def test_flawed_candidates_from_end_to_end(tmp_path: Path) -> None:
    """Built, run, compared: one computes a thousandth more, another ends its builder; neither is ever followed."""
    path = tmp_path / "trials.jsonl"
    session = Session(ONE, NATIVE, Database.open(path), LocalRunner(NATIVE, 2, 1e-4), 1, make=make_flawed)
    for turns in (WRONG_TURNS, ABORTING_TURNS, 8):
        session.status.kernels[0].search.hint(with_turns(turns))
    session.run(Budget(trials=4))
    found = {record.decisions["turns"]: record for record in reversed(Database.open(path).records)}
    wrong, crashed, right = (found[turns] for turns in (WRONG_TURNS, ABORTING_TURNS, 8))
    assert wrong.failure is not None
    assert wrong.failure.startswith("wrong result: it differs by 1.0e-03 of the largest value from the untuned kernel")
    assert (wrong.name, wrong.kernel, wrong.decisions) == ("product", ONE[0].kernel, with_turns(WRONG_TURNS).decisions)
    assert crashed.failure == "the build crashed: SIGABRT"
    assert right.failure is None
    assert right.ratio is not None
    best = session.status.kernels[0].best
    assert best is None or best.failure is None
    assert session.status.kernels[0].failures >= 2
