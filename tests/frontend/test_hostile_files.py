"""Hostile model files: the command line refuses each in a line, and nothing of them runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.frontend.hostile import write_all

# One process for all of them, as one user would try one after another. What a file did to Python would be seen there.
CHECK_EACH = """
import builtins, contextlib, io, resource, sys
from gfcompile.cli import main

resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for path in sys.argv[1:]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["check", path])
    lines = said.getvalue().splitlines()
    print(path, code, len(lines), hasattr(builtins, "gf_ran"), lines[0] if lines else "", sep="\\t")
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    folder = tmp_path_factory.mktemp("hostile")
    paths = [str(path) for path in write_all(folder)]
    command = [sys.executable, "-P", "-c", CHECK_EACH, *paths]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == paths
    return folder, rows


@pytest.mark.slow
def test_each_is_refused_in_one_line(tried: tuple[Path, list[list[str]]]) -> None:
    _, rows = tried
    assert len(rows) >= 40
    for path, code, lines, _, text in rows:
        assert (code, lines) == ("2", "1"), (path, code, text)
        assert text.startswith(f"gfcompile: error: {path}: "), text
        assert text.isprintable()


def test_nothing_ran(tried: tuple[Path, list[list[str]]]) -> None:
    folder, rows = tried
    assert not (folder / "ran").exists()
    assert {row[3] for row in rows} == {"False"}


@pytest.fixture
def run_check(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """`gfcompile check` on a saved module: its exit code and the last line that it says."""

    def run(model: nn.Module, first: str = "pass") -> tuple[int, str]:
        torch.save(model, tmp_path / "net.pt")
        program = f"{first}; import sys; from gfcompile.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-P", "-c", program, "check", "net.pt", "--input", "2x3x8x8"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
        return done.returncode, done.stderr.splitlines()[-1]

    return run


def forge(layer: nn.Module, **state: object) -> nn.Sequential:
    vars(layer).update(state)
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.AdaptiveAvgPool2d(3), nn.Flatten(2), layer)


CRASHED = (
    2,
    "gfcompile: error: net.pt: ends PyTorch with SIGSEGV when it runs once; if you trust the file, add --trust",
)


@pytest.mark.slow
def test_a_crash_ends_a_child(run_check: Callable[..., tuple[int, str]]) -> None:
    crash = "import os, torch; torch.nn.functional.fold = lambda *_: os.kill(os.getpid(), 11)"
    assert run_check(nn.Sequential(nn.Flatten(2), nn.Fold((4, 4), (2, 2))), crash) == CRASHED


@pytest.mark.coverage
def test_numbers_that_pytorch_takes_on_trust_end_a_child(run_check: Callable[..., tuple[int, str]]) -> None:
    """A padding that overflows: PyTorch 2.13 writes outside its memory, and takes its time."""
    assert run_check(forge(nn.Fold((4, 4), (2, 2)), padding=2**31)) == CRASHED


@pytest.mark.slow
def test_more_memory_than_there_is(run_check: Callable[..., tuple[int, str]]) -> None:
    code, said = run_check(forge(nn.ConstantPad1d(0, 0.0), padding=(0, 2**40)))
    assert (code, said) == (
        2,
        "gfcompile: error: net.pt: wants more memory than this machine has when it runs once; give a smaller --input",
    )
