"""Tuning through emulated boards from end to end: right or wrong shows there, and nothing is called fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfcompile.cli import main
from gfcompile.codegen.schedules import follow, schedule
from gfcompile.codegen.scheduling import Scheduler
from gfcompile.codegen.tuned.database import Database, Databases
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.tasks import Task
from gfcompile.targets import find_target
from gfcompile.tuning.local import LocalRunner
from gfcompile.tuning.session import MOST_ERROR
from gfcompile.tuning.tracker import Tracker
from gfcompile.tuning.trial import build_trial
from tests.boards.conftest import need
from tests.selection import often
from tests.tuning.arm64_python import board_command, board_environment
from tests.tuning.folders import write_folder
from tests.tuning.kernels import convolution, product
from tests.tuning.servers import running_boards

KERNELS_TRIED = {"product": product(rows=8), "conv": convolution(size=6)}


@pytest.mark.slow
@pytest.mark.parametrize("name", often(["rpi3", "rpi4"], ["rpi4"]))
def test_tuning_through_an_emulated_board(
    tracker: Tracker, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    target = find_target(name)
    program, *options = target.emulator
    emulator = [need(program, "qemu-user-static"), *options]
    python = board_command(emulator, tmp_path / "python")
    folder, db = tmp_path / "step", tmp_path / "board.jsonl"
    tasks = [Task(kernel_hash(each), kernel, each, 1) for kernel, each in KERNELS_TRIED.items()]
    write_folder(folder, tasks, name)
    boards = ["--rpc", f"{tracker.host}:{tracker.port}", "--key", name]
    command = ["tune", str(folder), *boards, "--db", str(db), "--trials", "4"]
    with running_boards(tracker, name, 1, python, board_environment()):
        assert main([*command, "--emulated"]) == 0
        said = capsys.readouterr().out
        assert main([*command, "--quiet"]) == 2  # as if it were real
        assert " is emulated, its times are no board's; add --emulated" in capsys.readouterr().err
    assert f"tuning 2 kernels for {name}, 4 trials; trials are emulated\n" in said
    assert "\nthrough an emulator: right or wrong shows, speed does not; the compiler never follows these\n" in said
    assert said.endswith(f"{db}: the compiler does not follow it\n")
    assert "measured" not in said

    records = Database.open(db).records
    assert len(records) == 4
    assert {record.kind for record in records} == {"emulated"}
    assert {record.target for record in records} == {target_key(target)}
    assert all(record.machine["emulated"] for record in records)
    assert [record.failure for record in records] == [None] * 4

    # each of them once more, as a program of its own: what was decided is right
    runner = LocalRunner(target, 1, 1e-4)
    for number, record in enumerate(records):
        function = KERNELS_TRIED[record.name]
        decided = follow(record.template, record.decisions, function, target)
        assert decided is not None
        path = build_trial(function, decided, schedule(function, target), target, tmp_path / str(number))
        assert runner.run(path, 60).error <= MOST_ERROR
    scheduler = Scheduler(target, Databases.open(db))
    assert all(scheduler(function).tuned is None for function in KERNELS_TRIED.values())

    assert main(["tune", "--show", str(db)]) == 0
    shown = capsys.readouterr().out
    assert f"{target_key(target)}\n" in shown
    assert "trials: 4 (emulated 4), failed: 0\n" in shown
    assert "measured to be faster than untuned: 0" in shown
    assert " ms " not in shown
    assert " µs " not in shown
