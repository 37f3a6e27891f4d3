"""The list fits the code, and the script tells a fault that is noticed from one that is not."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.__main__ import main
from tests.faults.fault import Fault
from tests.faults.lists import ALL
from tests.faults.measure import BROKEN, CAUGHT, MISSED, Verdict, confirm, measure, measure_all
from tests.faults.tree import ROOT, Tree, copy_project

LIMIT = 60.0
CODE = "def double(number):\n    return number + number\n\n\ndef half(number):\n    return number / 2\n"
TESTS = """import os
import time
from arithmetic import double, half

def test_double():
    assert double(3) == 6

def test_double_of_nothing():
    assert double(0) == 0

def test_half():
    assert half(3) == 1.5

def test_that_always_fails():
    assert double(1) == 3

def test_crash():
    if double(1) != 2:
        os.abort()

def test_end():
    while double(1) != 2:
        time.sleep(0.01)
"""


def planted(*tests: str, find: str = "number + number", put: str = "number - number") -> Fault:
    names = tuple(f"test_arithmetic.py::{name}" for name in tests)
    return Fault("planted", "arithmetic.py", find, put, "numbers vanish", names)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("project")
    (folder / "arithmetic.py").write_text(CODE)
    (folder / "test_arithmetic.py").write_text(TESTS)
    with Tree(folder, imported=()) as found:
        yield found


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_each_fits_the_code(fault: Fault) -> None:
    assert fault.refusal(ROOT) is None
    harmed = fault.harmed(ROOT)
    assert harmed != (ROOT / fault.file).read_text()
    if fault.file.endswith(".py"):
        compile(harmed, fault.file, "exec")
    elif fault.file.endswith(".toml"):
        tomllib.loads(harmed)
    for test in fault.tests:
        path, _, name = test.partition("::")
        pattern = rf"^def {name}\(" if name else "^def test"
        assert re.search(pattern, (ROOT / path).read_text(), re.MULTILINE), f"no test {test}"


def test_the_list() -> None:
    names = [fault.name for fault in ALL]
    assert len(set(names)) == len(names) >= 48
    assert len({fault.file.split("/")[1] for fault in ALL}) >= 10, "faults in few rooms"


def test_caught(tree: Tree) -> None:
    found = measure(planted("test_double_of_nothing", "test_double"), tree, LIMIT)
    assert str(found) == "caught by test_arithmetic.py::test_double"
    assert (tree.folder / "arithmetic.py").read_text() == CODE


def test_missed(tree: Tree) -> None:
    assert str(measure(planted("test_double_of_nothing", "test_half"), tree, LIMIT)) == "MISSED"
    assert (tree.folder / "arithmetic.py").read_text() == CODE


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (planted("test_half", find="return"), "arithmetic.py has its text 2 times"),
        (planted("test_half", find="treble"), "arithmetic.py has its text 0 times"),
        (replace(planted("test_half"), file="gone.py"), "gone.py does not exist"),
        (replace(planted(), tests=("test_gone.py", "gone/test.py::test")), "none of test_gone.py, gone/test.py::test"),
        (planted("test_gone"), "pytest's code 4: "),
    ],
)
def test_no_verdict(tree: Tree, fault: Fault, reason: str) -> None:
    found = measure(fault, tree, LIMIT)
    assert found.word == BROKEN
    assert str(found).startswith(f"does not apply: {reason}")


@pytest.mark.parametrize(
    ("test", "limit", "end"), [("test_crash", LIMIT, "SIGABRT"), ("test_end", 3.0, r"no end after \d+ s")]
)
def test_no_test_need_live_to_say_so(tree: Tree, test: str, limit: float, end: str) -> None:
    found = measure(planted(test), tree, limit)
    assert re.fullmatch(f"caught by {end} in test_arithmetic.py::{test}", str(found))
    assert confirm([found], tree, LIMIT) == [found]


def test_a_test_that_fails_anyway_has_noticed_nothing(tree: Tree) -> None:
    faults = [replace(planted(test), name=test) for test in ("test_that_always_fails", "test_double", "test_half")]
    lines: list[str] = []
    found = measure_all(faults, [tree], lines.append, LIMIT)
    assert [verdict.word for verdict in found] == [BROKEN, CAUGHT, MISSED]
    assert found[0].by == "test_arithmetic.py::test_that_always_fails fails without it too"
    line = r"  2 of 3, about \d+ min left  test_double: caught by test_arithmetic.py::test_double"
    assert re.fullmatch(line, lines[1])


def test_a_run_that_says_too_little_is_repeated_test_by_test(tree: Tree) -> None:
    """A crash ends the run of all tests together: each is then asked by itself."""
    good = Verdict(planted(), CAUGHT, again=("test_arithmetic.py::test_half",))
    bad = Verdict(planted(), CAUGHT, again=("test_arithmetic.py::test_crash",))
    with planted().planted(tree.folder):
        assert [verdict.word for verdict in confirm([bad, good], tree, LIMIT)] == [BROKEN, CAUGHT]


def test_the_copy_is_what_would_be_committed(tmp_path: Path) -> None:
    copy_project(tmp_path / "copy")
    assert (tmp_path / "copy" / "tests" / "faults" / "test_faults.py").read_bytes() == Path(__file__).read_bytes()
    assert not list((tmp_path / "copy").rglob("__pycache__"))


@pytest.mark.slow
def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-fault"]) == 2
    assert capsys.readouterr().err == "faults: 'no-such-fault' is not in the list; see --list\n"
    assert main([ALL[0].name, "--list"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ALL[0].name
