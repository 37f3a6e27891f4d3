"""With no board, a static model ranks what NVRTC and ptxas made of the candidates, and every record says so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tvm import te, tirx

from gfcompile.cli import main
from gfcompile.codegen import kernels
from gfcompile.codegen.cuda.launches import cut
from gfcompile.codegen.cuda.ptxas import Usage
from gfcompile.codegen.tuned.database import Database, kernel_hash, target_key
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.errors import UserError
from gfcompile.targets import Machine, find_target
from gfcompile.tuning import ranking
from gfcompile.tuning.gpu_model import Counts, count, estimate_seconds
from gfcompile.tuning.ranking import Ranked, Ranking, rank
from gfcompile.tuning.space import Candidate, Drawn, draw
from gfcompile.tuning.status import Budget
from tests.tuning.folders import write_folder
from tests.tuning.kernels import convolution, kernel, scaled

NANO, ORIN = find_target("jetson-nano"), find_target("jetson-orin")
PRODUCT = kernel(lambda a, b: kernels.matmul(a, b, False, False), (256, 64), (64, 128))
TILED = {"tile": (64, 64, 4, 4), "depth": 8}


def task(function: tirx.PrimFunc, name: str = "kernel", calls: int = 1) -> Task:
    return Task(kernel_hash(function), name, function, calls)


def counts(function: tirx.PrimFunc, template: str, **decisions: object) -> Counts:
    drawn = draw(function, NANO, Candidate(template, decisions))  # type: ignore[arg-type]
    (part,) = cut(drawn.function).parts
    return count(part)


def test_a_tile_s_accesses_are_counted() -> None:
    """256 x 128 sums of 64 terms, in 4 x 2 tiles of 64 x 64; a thread multiplies 4 rows by 4 columns."""
    found = counts(PRODUCT, "matmul", **TILED)
    products = 256 * 128 * 64
    fetched = 8 * (64 + 64) * 64  # tiles x rows and columns x terms
    assert found.operations == products
    assert found.shared_loads == products * (4 + 4) / 16 + fetched
    assert found.accesses == fetched + 256 * 128
    assert found.operands == 4 * (256 * 64 + 64 * 128 + 256 * 128)


def test_neighbours_share_sectors_and_strangers_do_not() -> None:
    """Eight lanes read a row of A together, a sector; sixteen threads along a row of C store every fourth value."""
    found = counts(PRODUCT, "matmul", **TILED)
    fetched, stored = 8 * (64 + 64) * 64, 256 * 128
    assert found.traffic == 4 * fetched + 16 * stored


def test_a_thread_that_works_alone_reads_everything_again() -> None:
    found = counts(PRODUCT, "rest", **{"threads 0": 256})
    assert found.operations == 256 * 128 * 64
    assert found.shared_loads == 0
    assert found.accesses == 2 * 256 * 128 * 64 + 256 * 128


def test_padding_is_work() -> None:
    small = kernel(lambda a, b: kernels.matmul(a, b, False, False), (33, 64), (64, 33))
    assert counts(small, "matmul", tile=(32, 32, 2, 4), depth=8).operations == 64 * 64 * 64


def usage(**changes: object) -> Usage:
    usual = Usage("k", 32, 4096, 0, threads=256, blocks=64, occupancy=1.0)
    return replace(usual, **changes)  # type: ignore[arg-type]


COUNTS = Counts(operations=1e7, shared_loads=1e6, accesses=1e5, traffic=4e5, operands=4e5)


def seconds(of: Counts, used: Usage) -> float:
    assert ORIN.gpu is not None
    return estimate_seconds([of], [used], ORIN.gpu, 5e12, 2e11)


@pytest.mark.parametrize(
    ("of", "used"),
    [
        (replace(COUNTS, operations=2e7), usage()),
        (replace(COUNTS, shared_loads=1e7), usage()),
        (replace(COUNTS, traffic=1e8), usage()),
        (COUNTS, usage(occupancy=0.25)),
        (COUNTS, usage(blocks=65)),  # a fifth block on one of sixteen multiprocessors: the others wait
        (COUNTS, usage(blocks=4)),  # twelve have none
    ],
)
def test_what_costs_time_in_the_model(of: Counts, used: Usage) -> None:
    assert seconds(of, used) > 1.02 * seconds(COUNTS, usage())


@dataclass(frozen=True)
class WholeRanking:
    """Of a product, with no end to the budget; `seen` is what it worked on, and nothing writes into the database."""

    found: Ranking
    database: Database
    path: Path
    seen: list[Ranked | None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WholeRanking:
    path, seen = tmp_path_factory.mktemp("whole") / "db.jsonl", []
    database = Database.open(path)
    found = rank([task(PRODUCT, calls=3)], NANO, database, Budget(), lambda state: seen.append(state.kernel))
    return WholeRanking(found, database, path, seen)


@pytest.mark.slow
def test_ranked_records_say_what_they_are(whole: WholeRanking) -> None:
    found, database = whole.found, whole.database
    assert found.trials == len(database.records) > 20
    assert "ranked, not measured" in found.note
    assert "sm_53" in found.note
    for record in database.records:
        assert record.kind == "ranked"
        assert record.seconds is record.reference_seconds is record.ratio is record.spread is None
        assert (record.score is None) == (record.failure is not None)
    (ranked,) = found.kernels
    assert ranked.seconds == 3 * ranked.run_seconds
    assert whole.seen == [ranked, None]
    scores = [record.score for record in database.records if record.score is not None]
    assert found.score == (max(scores) if max(scores) >= 1.02 else 1.0)
    again = Database.open(whole.path)
    assert again.records == database.records


def test_the_compiler_uses_no_ranked_record(whole: WholeRanking) -> None:
    database = whole.database
    assert max(record.score or 0 for record in database.records) > 1
    for allow_emulated in (False, True):
        assert database.best(kernel_hash(PRODUCT), target_key(NANO), allow_emulated) is None


@pytest.mark.slow
def test_what_is_known_is_not_ranked_again(whole: WholeRanking) -> None:
    database = Database(records=list(whole.database.records))
    second = rank([task(PRODUCT)], NANO, database, Budget())
    assert second.trials == 0
    assert database.records == whole.database.records
    assert second.score == whole.found.score


@pytest.mark.slow
def test_the_budget_goes_to_what_takes_longest() -> None:
    database = Database()
    small = kernel(lambda a, b: kernels.matmul(a, b, False, False), (64, 64), (64, 64))
    found = rank([task(small, "small"), task(PRODUCT, "large", 9)], NANO, database, Budget(trials=3))
    assert found.trials == 3
    assert {record.name for record in database.records} == {"large"}


def test_a_kernel_without_choices_or_calls_is_left_alone() -> None:
    found = rank([task(PRODUCT, calls=0), task(scaled(2.0, 8))], NANO, Database(), Budget())
    assert found.kernels == []
    assert found.score == 1


@pytest.mark.slow
def test_one_that_spills_is_told_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assemble = ranking.assemble

    def spill_one(ptx: Path, cubin: Path, arch: str) -> dict[str, tuple[int, int, int]]:
        counted = assemble(ptx, cubin, arch)
        if "candidate_2_0_kernel" in counted:
            counted["candidate_2_0_kernel"] = (255, 4096, 96)
            counted["candidate_3_0_kernel"] = (300, 4096, 0)
        return counted

    monkeypatch.setattr(ranking, "assemble", spill_one)
    database = Database()
    rank([task(PRODUCT)], NANO, database, Budget(trials=5))
    failures = {record.failure for record in database.records if record.failure}
    assert failures == {
        "ptxas spills 96 bytes of registers (255 are in use)",
        "'candidate_3_0_kernel' takes 38400 registers per block, sm_53 has 32768",
    }
    assert all(record.score is None for record in database.records if record.failure)


@pytest.mark.coverage
def test_one_that_no_gpu_takes_does_not_spoil_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a source: it is cut in halves until the bad one is alone."""
    wide = kernel(lambda x: te.compute(x.shape, lambda i, j: x[i, j] + 1.0), (70_000, 40_000))

    def is_bad(decisions: Mapping[str, object]) -> bool:
        return decisions.get("tile") in {(16, 64, 2, 4), (16, 32, 1, 4)}

    def sabotage(function: tirx.PrimFunc, target: object, candidate: Candidate) -> Drawn:
        drawn = draw(function, target, candidate)  # type: ignore[arg-type]
        if is_bad(candidate.decisions):
            return replace(drawn, function=draw(wide, NANO, Candidate("rest")).function)
        return drawn

    monkeypatch.setattr(ranking, "draw", sabotage)
    database = Database()
    rank([task(PRODUCT)], NANO, database, Budget(trials=14))
    failed = [record for record in database.records if record.failure]
    assert len(failed) == 2
    for record in failed:
        assert is_bad(record.decisions)
        assert "no GPU takes" in str(record.failure)
    assert len(database.records) > 10 + len(failed)


def test_nothing_is_ranked_by_figures_that_nobody_published() -> None:
    unknown = r"^target 'jetson-nano': has no published peak and bandwidth in its file, so nothing can be ranked; use"
    with pytest.raises(UserError, match=unknown):
        rank([], replace(NANO, machine=Machine()), Database(), Budget())
    with pytest.raises(UserError, match=r"'rpi3': has no GPU, so nothing can be ranked; use --rpc with a board$"):
        rank([], find_target("rpi3"), Database(), Budget())


@pytest.mark.coverage
def test_a_convolution_is_ranked_for_another_gpu() -> None:
    found = rank([task(convolution(8, 28, 64, 64))], ORIN, Database(), Budget(trials=6))
    assert found.trials == 6
    assert found.kernels[0].failures == 0


@pytest.mark.slow
def test_the_command_ranks_where_there_is_no_board(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "step", [task(convolution())], "jetson-nano")
    db = tmp_path / "ranked.jsonl"
    assert main(["tune", str(folder), "--trials", "2", "--db", str(db)]) == 0
    said = capsys.readouterr().out
    assert "ranked, not measured: a static model of sm_53" in said
    assert f"{db}: kept as ranked; the compiler does not follow these" in said
    records = Database.open(db).records
    assert records
    assert {record.kind for record in records} == {"ranked"}
    assert main(["tune", str(folder), "--trials", "1", "--db", str(db), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["numbers_are"] == "ranked"
