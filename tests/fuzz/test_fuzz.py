"""The harnesses take their corpus, and see a bug where one is planted: else minutes of fuzzing would mean nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from gfcompile.codegen.link import RUNTIME
from tests.fuzz import __main__ as runner
from tests.fuzz import c_programs, libfuzzer, python_programs, seeds
from tests.fuzz.check import refused
from tests.fuzz.harness import CORPUS, Harness, Job, Outcome
from tests.fuzz.mutate import change_several
from tests.missing import skip_for_want

C_NAMES = list(c_programs.PROGRAMS)
# Harness -> a check in product code, and what is left of it: an input of the corpus then goes too far.
PLANTS = {
    "json": ("gf_json.c", "if (p->end - p->next < 4) return 0;", ""),
    "tensorfile": ("gf_tensorfile.c", "if (length > file->map.bytes - 8)", "if (0)"),
    "artifact": ("gf_files.c", "!tensor || !gf_tensor_fits(tensor, value)", "!tensor"),
    "checkpoint": ("gf_checkpoint.c", "if (!gf_tensor_fits(tensor, value))", "if (0)"),
    "arrays": ("train/arrays.c", "if (wanted != bytes - offset)", "if (0)"),
    "options": ("train/options.c", "if (count == MAX_CHANNELS)", "if (0)"),
    "training": ("train/training.c", "while (t->at < t->batches)", "while (t->at != t->batches)"),
    "trial": ("trial/gf_trial_json.c", "i + 1 < sizeof plain", "i < 2 * sizeof plain"),
}


def run_corpus(engine: libfuzzer.Engine, folder: Path) -> tuple[Outcome, str]:
    """The seeds alone: no input is made of them."""
    (folder / "scratch").mkdir()
    command = engine.command
    engine = libfuzzer.Engine(
        lambda: [*command(), "-runs=0"], engine.corpora, engine.rss_megabytes, engine.hang_seconds, engine.mutes_stdout
    )
    outcome = engine.run(Job(60, 1, folder / "log", folder / "scratch", folder / "crashes"))
    return outcome, (folder / "log").read_text(errors="replace")


def c_engine(name: str, program: Path) -> libfuzzer.Engine:
    return libfuzzer.Engine(lambda: [str(program)], (name,), c_programs.RSS_MEGABYTES)


@pytest.fixture(scope="session")
def clang() -> None:
    missing = c_programs.find_missing()
    if missing is not None:
        skip_for_want(missing)


@pytest.fixture(scope="session")
def atheris() -> None:
    missing = python_programs.find_missing()
    if missing is not None:
        skip_for_want(missing)


@pytest.mark.slow
@pytest.mark.parametrize("name", C_NAMES)
@pytest.mark.usefixtures("clang")
def test_a_harness_takes_its_corpus(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = c_programs.build(c_programs.PROGRAMS[name])
    outcome, said = run_corpus(c_engine(name, program), tmp_path)
    assert (outcome.findings, outcome.failure) == ((), ""), said
    assert outcome.executions > len(list((CORPUS / name).iterdir()))  # and the empty input


@pytest.mark.slow
@pytest.mark.parametrize("name", C_NAMES)
@pytest.mark.usefixtures("clang")
def test_a_harness_finds_a_planted_bug(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, check, left = PLANTS[name]
    text = (RUNTIME / file).read_text()
    assert text.count(check) == 1, "the check is written otherwise now: plant another bug"
    broken = tmp_path / Path(file).name
    broken.write_text(text.replace(check, left))
    program = c_programs.build(c_programs.PROGRAMS[name], {RUNTIME / file: broken})
    outcome, said = run_corpus(c_engine(name, program), tmp_path)
    assert len(outcome.findings) == 1, said
    assert "Sanitizer: " in libfuzzer.summary(said)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "check"), [(name, check) for name, (check, _) in python_programs.CHECKS.items()])
def test_a_loader_takes_its_corpus(name: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: starting Atheris for each would take longer than all of it."""
    module, _, attribute = check.partition(":")
    monkeypatch.chdir(tmp_path)
    taken = getattr(importlib.import_module(module), attribute)
    for folder in python_programs.CHECKS[name][1]:
        for path in sorted((CORPUS / folder).iterdir()):
            refused(taken.run, path.read_bytes())


@pytest.mark.parametrize(("check", "folders"), python_programs.CHECKS.values(), ids=python_programs.CHECKS)
def test_changes_are_functions_of_the_seed(check: str, folders: tuple[str, ...]) -> None:
    """On whole files they do not fail: child.py would do without them, and nobody would see it."""
    module, _, attribute = check.partition(":")
    change = getattr(importlib.import_module(module), attribute).mutate
    whole = [path.read_bytes() for folder in folders for path in (CORPUS / folder).iterdir()]
    for data in whole:
        made = [change_several(change, data, Random(seed)) for seed in range(30)]
        assert made == [change_several(change, data, Random(seed)) for seed in range(30)]
        assert len(set(made) - {data}) > 20


FOUND = [
    ("EXCEPTION", "KeyError: 'format'"),
    ("HANG", "libFuzzer: timeout"),
    ("MEMORY", "MemoryError"),
    ("CRASH", "libFuzzer: deadly signal"),
    ("LINES", "AssertionError: a refusal is not one line without control characters: 'two\\nlines'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text"), FOUND)
@pytest.mark.usefixtures("atheris")
def test_a_loader_with_a_planted_bug(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = python_programs.engine(f"tests.fuzz.planted:{name}", ("json",), hang_seconds=1)
    outcome, said = run_corpus(engine, tmp_path)
    assert len(outcome.findings) == 1, said
    assert libfuzzer.summary(said) == text


@pytest.mark.usefixtures("atheris")
def test_a_refusal_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = python_programs.engine("tests.fuzz.planted:REFUSAL", ("json",))
    outcome, said = run_corpus(engine, tmp_path)
    assert (outcome.findings, outcome.failure) == ((), ""), said


@pytest.mark.coverage
def test_the_corpus_is_what_its_script_writes(tmp_path: Path) -> None:
    """In a process of its own: a pickle says equal strings once or twice, by what this process did before."""
    subprocess.run([sys.executable, "-m", "tests.fuzz.seeds", str(tmp_path)], check=True)
    written = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {
        str(path.relative_to(CORPUS)): path.read_bytes()
        for path in CORPUS.rglob("*")
        if path.is_file() and not path.name.startswith(seeds.FIXED)
    }
    differ = sorted(name for name in written.keys() | kept.keys() if written.get(name) != kept.get(name))
    assert not differ, "run: python -m tests.fuzz.seeds"
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000


# ---- the runner


def fake(name: str, *findings: Path, missing: str | None = None, failure: str = "") -> Harness:
    def run(job: Job) -> Outcome:
        job.log.write_text("#7\tDONE   cov: 3\nSUMMARY: AddressSanitizer: heap-buffer-overflow a.c:1\n")
        return Outcome(12345, 2.0, 6, findings, failure)

    return Harness(name, "C", run, lambda: missing, lambda: None)


def run_main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, harnesses: list[Harness], words: Sequence[str]) -> int:
    monkeypatch.setattr(runner, "all_harnesses", lambda: harnesses)
    monkeypatch.setattr(runner, "STATE", tmp_path)
    return runner.main(words)


def test_the_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, tmp_path, [fake("a"), fake("b")], ["--seconds-each", "2", "--seed", "5"]) == 0
    said = capsys.readouterr().out.splitlines()
    jobs = min(2, os.cpu_count() or 1)
    assert said[0] == f"fuzz: 2 harnesses, 2 s each, {jobs} at a time, seed 5"
    assert said[-3:] == [
        "harness              kind    executions  per second  new coverage   crashes",
        "a                       C        12,345       6,172             6         0",
        "b                       C        12,345       6,172             6         0",
    ]


def test_a_finding_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crash = tmp_path / "crash-1"
    assert run_main(monkeypatch, tmp_path, [fake("a"), fake("b", crash)], ["--seconds-each", "2", "b"]) == 1
    said = capsys.readouterr().out
    assert "b: AddressSanitizer: heap-buffer-overflow a.c:1\n" in said
    assert f"  input:  {crash}\n" in said
    assert f" -m tests.fuzz b --replay {crash}\n" in said
    assert run_main(monkeypatch, tmp_path, [fake("b", crash)], ["b", "--replay", str(crash)]) == 1
    assert f"fuzz: b fails on {crash}\n" in capsys.readouterr().out
    assert run_main(monkeypatch, tmp_path, [fake("c", failure="ended with code 9")], ["--seconds-each", "2"]) == 1
    assert f"c: ended with code 9; see {tmp_path / 'logs' / 'c.log'}\n" in capsys.readouterr().out


def test_what_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harnesses = [fake("a", missing="clang is missing"), fake("b", missing="clang is missing"), fake("c")]
    monkeypatch.delenv("GF_REQUIRE_ALL", raising=False)
    assert run_main(monkeypatch, tmp_path, harnesses, ["--seconds-each", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("fuzz: clang is missing\n") == 1
    assert said.splitlines()[-1].startswith("c  ")
    monkeypatch.setenv("GF_REQUIRE_ALL", "1")
    assert run_main(monkeypatch, tmp_path, harnesses, ["--seconds-each", "2"]) == 1
    assert run_main(monkeypatch, tmp_path, harnesses, ["d"]) == 2
    assert capsys.readouterr().err == "fuzz: 'd' is no harness; use a, b, c\n"
