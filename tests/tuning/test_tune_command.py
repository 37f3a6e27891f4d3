"""`gfcompile tune` as a user has it: what it says, writes and refuses, and what compiling makes of it."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import gfcompile
from gfcompile.cli import main
from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.keys import kernel_hash, target_key
from gfcompile.codegen.tuned.tasks import KERNELS, Task, read_tasks, write_tasks
from gfcompile.tuning.session import Session
from gfcompile.tuning.space import Candidate, list_templates
from tests.lean import lean
from tests.tolerances import LOSS, TRAINING_STEPS, assert_near
from tests.tuning.folders import write_folder, write_target
from tests.tuning.forged import NATIVE, forge
from tests.tuning.kernels import convolution, product, scaled
from tests.tuning.records import fill, trial

SMALL = ["--input", "2x3x8x8", "--layers", "1"]
PRODUCT, CONV = (Task(kernel_hash(each), name, each, 1) for name, each in
                 (("product", product()), ("conv", convolution())))  # fmt: skip
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "step", [PRODUCT])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "tiny.pt"
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    torch.save(nn.Sequential(*layers), path)
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    out = model.parent / "tiny_step"
    with lean():
        assert main([str(model), *SMALL, "--out", str(out), "--quiet"]) == 0
    return out


def tune(*arguments: object) -> int:
    return main(["tune", *map(str, arguments)])


def error_of(capsys: Capture, *arguments: object) -> str:
    """The one line on stderr of a command that fails for a user's reason."""
    assert main([*map(str, arguments), "--quiet"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line.removeprefix("gfcompile: error: ")


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "tune: no model; give a MODEL or an ARTIFACT, or one of --show, --merge, --export"),
        (["m.pt", "--trials", "0"], "--trials 0: must be more than 0"),
        (["m.pt", "--trials", "-3"], "--trials -3: must be more than 0"),
        (["m.pt", "--trials", "few"], "--trials 'few': must be a whole number"),
        (["m.pt", "--minutes", "0"], "--minutes 0: must be more than 0"),
        (["m.pt", "--rpc", "board", "--key", "k"],
         "--rpc 'board': write HOST:PORT of the tracker, as in 192.168.1.5:9190"),
        (["m.pt", "--rpc", ":9190", "--key", "k"],
         "--rpc ':9190': write HOST:PORT of the tracker, as in 192.168.1.5:9190"),
        (["m.pt", "--rpc", "board:99999", "--key", "k"],
         "--rpc 'board:99999': write HOST:PORT of the tracker, as in 192.168.1.5:9190"),
        (["m.pt", "--rpc", "board:9190"], "--rpc: needs --key, the name that the boards gave the tracker"),
        (["m.pt", "--key", "pi4"], "--key pi4: is for --rpc HOST:PORT"),
        (["m.pt", "--emulated"],
         "--emulated: is for --rpc HOST:PORT; programs that run in an emulator here are known to"),
        (["gone.pt"], "gone.pt: no such file; check the path"),
        (["--show", "gone.jsonl"], "gone.jsonl: does not exist; give the file of a tuning database"),
        (["--merge", "a.jsonl"], "--merge: needs --db OUT, the file to write"),
        (["--merge", "a.jsonl", "--db", "gone.jsonl"], "a.jsonl: does not exist; give the file of a tuning database"),
        (["--export", "a.jsonl", "--db", "gone.jsonl"],
         "gone.jsonl: does not exist; give the file of a tuning database"),
    ],
)  # fmt: skip
def test_wrong_options(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, "tune", *options) == text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--minutes", "2.5"], "--minutes 2.5: is for --tune, or for gfcompile tune"),
        (["--trials", "9"], "--trials 9: is for --tune, or for gfcompile tune"),
        (["--tune", "--trials", "0"], "--trials 0: must be more than 0"),
    ],
)
def test_wrong_options_of_compile(capsys: Capture, options: list[str], text: str) -> None:
    assert error_of(capsys, "gone.pt", *options) == text


def test_no_tracker(capsys: Capture, folder: Path) -> None:
    text = error_of(capsys, "tune", folder, "--rpc", "127.0.0.1:1", "--key", "k", "--db", folder / "db")
    assert text.startswith("--rpc 127.0.0.1:1: no tracker answers (")
    assert text.endswith("); start one: python -m tvm.exec.rpc_tracker --port 1")


def test_a_database_that_is_none(capsys: Capture, folder: Path) -> None:
    db = folder / "notes.txt"
    db.write_text("dear diary\n")
    wrong = "not a tuning database, no line of it is a record"
    text = f"{db}: {wrong}; give another file, or one that is not there yet"
    assert error_of(capsys, "tune", folder, "--db", db, "--trials", "1") == text
    assert db.read_text() == "dear diary\n"


def test_an_artifact_without_its_kernels(capsys: Capture, folder: Path) -> None:
    (folder / "graphs" / KERNELS).unlink()
    text = f"{folder}: has no graphs/kernels.json.gz; compile it again, or give the model"
    assert error_of(capsys, "tune", folder) == text


DAMAGED = {
    "no gzip": b"kernels",
    "cut off": write_tasks([PRODUCT])[:-40],
    "a wrong byte": write_tasks([PRODUCT])[:200] + b"\0\xff\0" + write_tasks([PRODUCT])[203:],
    "no json": gzip.compress(b"{"),
    "no rows": gzip.compress(b"3"),
    "no names": gzip.compress(b'[{"function": "{}"}]'),
    "no function": gzip.compress(b'[{"name": "a", "calls": 1, "function": "[]"}]'),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_an_artifact_whose_kernels_are_damaged(capsys: Capture, folder: Path, content: bytes) -> None:
    path = folder / "graphs" / KERNELS
    path.write_bytes(content)
    text = error_of(capsys, "tune", folder)
    assert text.startswith(f"{path}: is damaged (")
    assert text.endswith("); compile again")


def test_a_folder_that_is_no_artifact(capsys: Capture, tmp_path: Path) -> None:
    text = f"'{tmp_path}': no manifest.json there; pass the folder that gfcompile wrote"
    assert error_of(capsys, "tune", tmp_path) == text


def test_an_artifact_for_another_machine(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its target is the artifact's; without the emulator, it says what to do."""
    write_target(folder, "rpi4")
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setenv("PATH", str(tmp_path))
    text = error_of(capsys, "tune", folder, "--db", tmp_path / "db")
    assert text.startswith("target 'rpi4': 'qemu-aarch64-static' is not installed")
    assert text.endswith("apt install qemu-user-static, or use --rpc with a board")


# ---- what is done


def test_kernels_of_an_artifact_come_back(tmp_path: Path) -> None:
    tasks = [PRODUCT, CONV, Task(kernel_hash(scaled(2.0)), "scaled", scaled(2.0), 7)]
    found = read_tasks(write_folder(tmp_path / "step", tasks))
    assert [(task.kernel, task.name, task.calls) for task in found] == [
        (task.kernel, task.name, task.calls) for task in tasks
    ]


@pytest.mark.slow
def test_what_a_session_says(capsys: Capture, folder: Path) -> None:
    db = folder / "db.jsonl"
    assert tune(folder, "--trials", 3, "--db", db) == 0
    first, second, *_, summary, last = capsys.readouterr().out.splitlines()
    assert first == "tuning 1 kernels for native, 3 trials; trials are measured"
    assert second == f"trials are kept in {db}"
    assert re.fullmatch(
        r"3 trials in \d\.\d minutes: [01] of 1 kernels are faster; all .* \d\.\d{3}x, measured", summary
    )
    assert last == f"{db}: compiling with this --db follows it"
    records = Database.open(db).records
    assert len(records) == 3
    assert {(each.name, each.kernel, each.target) for each in records} == {
        ("product", PRODUCT.kernel, target_key(NATIVE))
    }
    assert [each.failure for each in records] == [None] * 3
    # again, as JSON: it goes on
    with db.open("a") as file:
        file.write("{half a line")
    assert tune(folder, "--trials", 2, "--db", db, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert {name: found[name] for name in ("database", "numbers_are", "interrupted", "trials")} == {
        "database": str(db), "numbers_are": "measured", "interrupted": False, "trials": 2,
    }  # fmt: skip
    assert [(row["kernel"], row["trials"]) for row in found["kernels"]] == [("product", 2)]
    assert f"{db}:4: not a whole JSON object; skipped" in captured.err.splitlines()
    assert f"trials are kept in {db}, 1 of these kernels are there already" in captured.err.splitlines()
    again = Database.open(db)
    assert len(again.records) == 5
    assert len({Candidate(each.template, each.decisions).key for each in again.records}) == 5
    assert again.problems == [f"{db}:4: not a whole JSON object; skipped"]


def test_an_interrupt_ends_a_session_with_its_summary(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "run", run)
    db = folder / "db.jsonl"
    assert tune(folder, "--trials", 3, "--db", db) == 130
    assert capsys.readouterr().out.splitlines()[-1] == f"{db}: stopped; the same command goes on from here"
    assert tune(folder, "--trials", 3, "--db", db, "--json") == 130
    assert json.loads(capsys.readouterr().out)["interrupted"] is True


def test_the_users_own_database_is_the_default(capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "run", lambda *_: None)
    own = folder / "own.jsonl"
    monkeypatch.setenv("GFCOMPILE_TUNING", str(own))
    assert tune(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tuning 1 kernels for native, 10 minutes; trials are measured"
    assert lines[-1] == f"{own}: compiling for this target follows it"


def test_show_merge_and_export(capsys: Capture, tmp_path: Path) -> None:
    a, b, out, best = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "out.jsonl", "best.jsonl"))
    fast, slow = forge(PRODUCT), forge(PRODUCT, spread=8.5)
    fill(a, slow, fast)
    fill(b, fast, forge(CONV, kind="emulated"))
    with b.open("a") as file:
        file.write("{}")
    assert tune("--merge", a, b, "--db", out) == 0
    problem, wrote = capsys.readouterr().out.splitlines()
    assert problem.startswith(f"{b}:3: lacks 'kernel', ")
    assert wrote == f"wrote {out}: 3 trials, 1 duplicates left out"
    assert tune("--export", best, "--db", out) == 0
    assert capsys.readouterr().out == f"wrote {best}: the best trials of 1 kernels\n"
    assert Database.open(best).records == [fast]
    assert tune("--show", out) == 0
    shown = capsys.readouterr().out
    assert "9.00 ± 0.05" in shown
    assert "trials: 3 (measured 2, emulated 1), failed: 0\nkernels: 2, measured to be faster than untuned: 1\n" in shown
    assert tune("--show", b, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in found["records"]] == ["measured", "emulated"]
    assert len(found["problems"]) == 1


def losses(folder: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    with gfcompile.load(folder) as step:
        found = [step.train(rng.standard_normal((2, 3, 8, 8), "float32"), rng.integers(0, 5, 2)) for _ in range(4)]
        return found, {name: value.numpy().copy() for name, value in step.state_dict().items()}


@pytest.mark.slow
def test_compiling_follows_a_database(capsys: Capture, model: Path, artifact: Path, tmp_path: Path) -> None:
    db, out = tmp_path / "forged.jsonl", tmp_path / "tuned_step"
    tasks = [task for task in read_tasks(artifact) if list_templates(task.function, NATIVE) and task.calls]
    forged = [forge(task) for task in tasks[:-1]]
    no_option = trial(**vars(forge(tasks[-1])) | {"decisions": {"tile": (77,)}, "template": "conv"})
    fill(db, *forged, no_option)
    with db.open("a") as file:
        file.write("{}")
    with lean():
        assert main([str(model), *SMALL, "--out", str(out), "--db", str(db)]) == 0
    said = capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())["tuning"]
    untuned = json.loads((artifact / "report.json").read_text())["tuning"]
    assert untuned["tuned"] == []
    assert {row["kernel"] for row in report["tuned"]} == {record.name for record in forged}
    assert {row["ratio"] for row in report["tuned"]} == {9.0}
    assert report["numbers_are"] == "measured"
    assert len(report["problems"]) == 1
    assert report["problems"][0].startswith(f"{db}:{len(forged) + 2}: lacks 'kernel', ")
    kernels = report["kernels"]
    assert f"tuned: {len(forged)} of {kernels} kernels follow trials of 2025-11-03 on one\n" in said
    assert f"tuned: {len(forged)} of {kernels} kernels follow trials of 2025-11-03 on one." in (
        (out / "report.md").read_text()
    )
    assert main(["verify", str(model), str(out), "--quiet"]) == 0
    (found, state), (wanted, expected) = losses(out), losses(artifact)
    assert_near(found, wanted, LOSS, "losses")
    for name, value in expected.items():
        assert_near(state[name], value, TRAINING_STEPS, name)
    assert (out / "libstep.so").read_bytes() != (artifact / "libstep.so").read_bytes()


@pytest.mark.slow
def test_tune_and_compile_in_one_command(capsys: Capture, model: Path, tmp_path: Path) -> None:
    """Its JSON is the one of compiling."""
    db, out = tmp_path / "db.jsonl", tmp_path / "tuned_step"
    options = ["--tune", "--trials", "2", "--db", str(db), "--out", str(out), "--json"]
    with lean():
        assert main([str(model), *SMALL, *options]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["artifact"] == str(out)
    assert len(Database.open(db).records) == 2
    best = {each.kernel for each in Database.open(db).records if Database.open(db).best(each.kernel, each.target)}
    assert len(report["tuning"]["tuned"]) == len(best)
    assert f"{db}: compiling with this --db follows it" in captured.err.splitlines()


@pytest.mark.slow
def test_a_model_and_its_artifact_are_the_same_kernels(
    capsys: Capture, model: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is tried: what was tried of one of them is there for both."""
    monkeypatch.setattr(Session, "run", lambda *_: None)
    db = tmp_path / "db.jsonl"
    tasks = [task for task in read_tasks(artifact) if list_templates(task.function, NATIVE) and task.calls]
    fill(db, forge(tasks[0]))
    kernels = []
    for given in ([model, *SMALL], [artifact]):
        assert tune(*given, "--trials", 1, "--db", db, "--json") == 0
        captured = capsys.readouterr()
        assert f"trials are kept in {db}, 1 of these kernels are there already" in captured.err.splitlines()
        kernels.append([row["kernel"] for row in json.loads(captured.out)["kernels"]])
    assert kernels[0] == kernels[1]
    assert sorted(kernels[0]) == sorted(task.name for task in tasks)


# ---- stopped in the middle


def start_tuning(folder: Path, db: Path, scratch: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gfcompile.cli", "tune", str(folder), "--db", str(db), "--minutes", "60"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a script's background, there too
    try:
        return subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": scratch}
        )
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for_lines(db: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not db.exists() or db.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.01)


@pytest.mark.coverage
def test_killed_at_any_moment_it_loses_one_trial_at_most(tmp_path: Path) -> None:
    folder, db = write_folder(tmp_path / "step", [PRODUCT, CONV]), tmp_path / "db.jsonl"
    with tempfile.TemporaryDirectory(prefix="gf", ignore_cleanup_errors=True) as scratch:
        process = start_tuning(folder, db, scratch)
        wait_for_lines(db, 2, process)
        time.sleep(random.Random(0).uniform(0, 1.5))
        process.kill()
        process.communicate()
        found = Database.open(db)
        assert len(found.problems) <= 1
        before = len(found.records)
        assert before >= 2
        process = start_tuning(folder, db, scratch)
        wait_for_lines(db, before + 2, process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    assert process.returncode == 130
    assert said.splitlines()[-1] == f"{db}: stopped; the same command goes on from here"
    records = Database.open(db).records
    assert len(records) >= before + 2
    keys = {(each.kernel, Candidate(each.template, each.decisions).key) for each in records}
    assert len(keys) == len(records)
