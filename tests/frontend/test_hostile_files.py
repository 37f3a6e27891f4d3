"""Hostile model files: the command line refuses each in a line, and nothing of them runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
