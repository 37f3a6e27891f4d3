"""Boards that tests may call: servers of this machine, and what is run on them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gfcompile.codegen.link import RUNTIME
from gfcompile.tuning.rpc import RpcRunner
from gfcompile.tuning.tracker import Tracker
from tests.tuning.servers import Process, running_boards, running_tracker

Builder = Callable[..., Path]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where trials leave a note that they have started."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


@pytest.fixture
def build(tmp_path: Path, notes: Path) -> Builder:
    """A trial's library with the stand-in core, in one of its modes."""

    def build(mode: str, compiler: str = "gcc", *more: str) -> Path:
        library = tmp_path / f"{mode}.so"
        sources = [RUNTIME / "trial/gf_trial_rpc.c", Path(__file__).with_name("stand_in_core.c")]
        options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-fvisibility=hidden", "-shared"]
        options += ["-Wl,--no-undefined", f"-I{RUNTIME / 'trial'}", f"-DGF_MODE={mode}", f'-DGF_FOLDER="{notes}"']
        subprocess.run([compiler, *options, *more, *map(str, sources), "-o", str(library)], check=True)
        return library

    return build


@pytest.fixture(scope="module")
def tracker() -> Iterator[Tracker]:
    with running_tracker() as tracker:
        yield tracker


@pytest.fixture(scope="module")
def pair(tracker: Tracker) -> Iterator[Callable[..., RpcRunner]]:
    """Two boards with one key."""
    with running_boards(tracker, "pair", 2):
        yield lambda **options: RpcRunner(tracker.host, tracker.port, "pair", "measured", **options)


@pytest.fixture
def board(tracker: Tracker) -> Iterator[Process]:
    """One that a test may take away."""
    with running_boards(tracker, "board") as boards:
        yield boards[0]
