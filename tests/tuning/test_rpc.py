"""Trials through TVM's RPC: on servers of this machine, and under qemu with a board's CPU."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gfcompile.codegen.schedules import schedule
from gfcompile.errors import UserError
from gfcompile.targets import find_target
from gfcompile.tuning import rpc
from gfcompile.tuning.local import BLOCK_SECONDS, TURNS
from gfcompile.tuning.rpc import BoardState, RpcRunner
from gfcompile.tuning.tracker import Claim, Tracker
from gfcompile.tuning.trial import Measurement, TrialFailed, build_trial
from tests.boards.conftest import need
from tests.selection import often
from tests.tuning.arm64_python import board_command, board_environment
from tests.tuning.conftest import Builder
from tests.tuning.kernels import convolution, scaled
from tests.tuning.servers import HOST, Process, free_port, running_boards, wait_until

EXPECTED = Measurement(0.5, (TURNS, 2.0), (BLOCK_SECONDS, 4.0))  # as stand_in_core.c has it
ENOUGH = 120.0  # seconds for what takes none


@pytest.mark.slow
def test_answer_comes_back(pair: Callable[..., RpcRunner], build: Builder) -> None:
    runner = pair()
    assert runner.boards() == 2
    assert runner.read_state() == {}
    assert runner.run(build("ANSWER"), ENOUGH) == EXPECTED
    (address, state), *others = runner.read_state().items()
    assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert not others
    assert not state.emulated


@pytest.mark.usefixtures("pair")
def test_unknown_key(tracker: Tracker) -> None:
    with pytest.raises(UserError) as refusal:
        RpcRunner(tracker.host, tracker.port, "pi", "measured")
    where = f"127.0.0.1:{tracker.port}"
    start = f"python -m tvm.exec.rpc_server --tracker {where} --key pi"
    assert str(refusal.value) == f"--rpc {where}: no board has --key 'pi' (it knows 'pair'); start on one: {start}"


def test_board_tells_how_fast_and_hot_it_is(pair: Callable[..., RpcRunner], build: Builder, tmp_path: Path) -> None:
    # a board of two kinds of cores: what counts is the fast one
    for core, fastest, now, governor in ((0, 1_400_000, 600_000, "ondemand"), (4, 1_800_000, 1_790_000, "performance")):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "cpuinfo_max_freq").write_text(f"{fastest}\n")
        (folder / "scaling_cur_freq").write_text(f"{now}\n")
        (folder / "scaling_governor").write_text(f"{governor}\n")
    heat = tmp_path / "class/thermal/thermal_zone0/temp"
    heat.parent.mkdir(parents=True)
    heat.write_text("61500\n")
    runner = pair()
    runner.run(build("ANSWER", "gcc", f'-DGF_SYSTEM_FOLDER="{tmp_path}"'), ENOUGH)
    assert list(runner.read_state().values()) == [BoardState(False, "performance", 1_790_000, 61_500)]


def test_kernels_are_compared_on_the_board(pair: Callable[..., RpcRunner], tmp_path: Path) -> None:
    target = find_target("native")
    once, more = (schedule(scaled(factor), target) for factor in (2.0, 2.5))
    measured = pair(turns=3).run(build_trial(scaled(2.0), more, once, target, tmp_path, "library"), ENOUGH)
    assert measured.error == pytest.approx(0.25)
    assert len(measured.seconds) == len(measured.reference) == 3


def test_two_boards_work_at_the_same_time(pair: Callable[..., RpcRunner], build: Builder) -> None:
    # each trial ends only when the other has started
    runner, library = pair(), build("MEET")
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(runner.run, library, ENOUGH) for _ in range(2)]
        assert [answer.result() for answer in answers] == [EXPECTED, EXPECTED]
    assert len(runner.read_state()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "timeout", "text"),
    [
        ("CRASH", ENOUGH, "the trial crashed: Aborted"),
        ("HANG", 0.5, "the trial hung: it was ended after 0.62 s"),
        ("FAIL", ENOUGH, "no memory for operand 3"),
    ],
)
def test_failed_trial_leaves_its_board_in_service(
    pair: Callable[..., RpcRunner], build: Builder, mode: str, timeout: float, text: str
) -> None:
    runner = pair()
    for _ in range(2):  # on both boards
        with pytest.raises(TrialFailed, match=f"^{re.escape(text)}$"):
            runner.run(build(mode), timeout)
    assert len(runner.read_state()) == 2
    assert runner.boards() == 2
    assert runner.run(build("ANSWER"), ENOUGH) == EXPECTED


def test_library_that_a_board_cannot_load(pair: Callable[..., RpcRunner], tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("no library")
    with pytest.raises(TrialFailed, match=r"^the board at 127\.0\.0\.1:\d+: .*trial\.so: file too short"):
        pair().run(library, ENOUGH)


def test_session_is_ended_by_the_server(
    pair: Callable[..., RpcRunner], build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as if the library's own clock had failed: it is set to two minutes, the session's to one second
    monkeypatch.setattr(rpc, "_TRANSFER_SECONDS", 1 - ENOUGH)
    monkeypatch.setattr(rpc, "_GRACE_SECONDS", ENOUGH)
    with pytest.raises(TrialFailed, match=r"^the board at 127\.0\.0\.1:\d+ ended the session, it took too long$"):
        pair().run(build("HANG"), ENOUGH)


def test_board_that_goes_silent(
    pair: Callable[..., RpcRunner], build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "_TRANSFER_SECONDS", 0.25)
    monkeypatch.setattr(rpc, "_GRACE_SECONDS", 0.25)
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(Tracker, "claim", lambda *_: Claim(HOST, port, "key"))
        with pytest.raises(TrialFailed, match=rf"^the board at 127\.0\.0\.1:{port} went silent: no answer in 1\.12 s$"):
            pair().run(build("ANSWER"), 0.5)


def test_board_that_is_gone_before_it_is_called(
    pair: Callable[..., RpcRunner], build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr(Tracker, "claim", lambda *_: Claim(HOST, port, "key"))
    with pytest.raises(TrialFailed, match=rf"^the board at 127\.0\.0\.1:{port} does not accept connections: .*failed"):
        pair().run(build("ANSWER"), ENOUGH)


@pytest.mark.slow
def test_board_lost_during_a_trial(tracker: Tracker, board: Process, build: Builder, notes: Path) -> None:
    runner = RpcRunner(tracker.host, tracker.port, "board", "measured", patience=0)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(runner.run, build("HANG"), ENOUGH)
        wait_until(lambda: any(notes.iterdir()))
        board.kill()
        with pytest.raises(TrialFailed, match=r"^the board at 127\.0\.0\.1:\d+ was lost during the trial: its conn"):
            answer.result()
    wait_until(lambda: tracker.count_boards()["board"] == 0)
    where = f"--rpc 127.0.0.1:{tracker.port}"
    for ask in (runner.boards, lambda: runner.run(build("ANSWER"), ENOUGH)):
        with pytest.raises(UserError, match=f"^{where}: no board has --key 'board' "):
            ask()


@pytest.mark.slow
@pytest.mark.usefixtures("board")
def test_trial_ends_with_its_session(tracker: Tracker, build: Builder, notes: Path) -> None:
    runner = RpcRunner(tracker.host, tracker.port, "board", "measured")
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(runner.run, build("HANG"), ENOUGH)
        wait_until(lambda: any(notes.iterdir()))
        (trial,) = (note.name for note in notes.iterdir())
        os.kill(int(read_status(trial)["PPid"]), signal.SIGKILL)
        with pytest.raises(TrialFailed, match=r"^the board at 127\.0\.0\.1:\d+ was lost during the trial: its conn"):
            answer.result()
    wait_until(lambda: read_status(trial)["State"][0] in "ZX")


def read_status(process: str) -> dict[str, str]:
    """What Linux says of a process; of one that is gone, that it is dead."""
    try:
        lines = Path("/proc", process, "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {"State": "X"}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.slow
@pytest.mark.usefixtures("board")
def test_board_that_is_busy(tracker: Tracker, build: Builder, notes: Path) -> None:
    runner = RpcRunner(tracker.host, tracker.port, "board", "measured", patience=0)
    problem = "the one board is busy with others' sessions for 0 s; wait for them, or add a board"
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(runner.run, build("MEET"), ENOUGH)
        wait_until(lambda: any(notes.iterdir()))
        with pytest.raises(UserError) as refusal:
            runner.run(build("ANSWER"), ENOUGH)
        (notes / "another").touch()  # what the first trial waits for
        assert answer.result() == EXPECTED
    assert str(refusal.value) == f"--rpc 127.0.0.1:{tracker.port}: --key 'board': {problem}"


@pytest.mark.slow
@pytest.mark.parametrize("name", often(["rpi3", "rpi4"], []))
def test_emulated_board(tracker: Tracker, build: Builder, tmp_path: Path, name: str) -> None:
    target = find_target(name)
    program, *options = target.emulator
    emulator = [need(program, "qemu-user-static"), *options]
    compiler = need("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")
    python = board_command(emulator, tmp_path / "python")
    scheduled = schedule(convolution(), target)
    convolved = build_trial(convolution(), scheduled, scheduled, target, tmp_path / "real", "library")
    with running_boards(tracker, name, 1, python, board_environment()):
        runner = RpcRunner(tracker.host, tracker.port, name, "emulated")
        assert runner.run(build("ANSWER", compiler), ENOUGH) == EXPECTED
        measured = runner.run(convolved, ENOUGH)
        assert measured.error == 0
        assert len(measured.seconds) == TURNS
        assert [state.emulated for state in runner.read_state().values()] == [True]
        # the board's CPU, not any: it has no dot products
        with pytest.raises(TrialFailed, match=r"^the trial crashed: Illegal instruction$"):
            runner.run(build("ILLEGAL", compiler), ENOUGH)
        with pytest.raises(TrialFailed, match=r"^the trial hung: it was ended after 0\.52 s$"):
            runner.run(build("HANG", compiler), 0.01)  # an emulator may take 40 times as long
        with pytest.raises(UserError, match=rf"^--key '{name}': the board at \S+ is emulated, its times are "):
            RpcRunner(tracker.host, tracker.port, name, "measured").run(build("ANSWER", compiler), ENOUGH)
