"""Scratch copies of the project, and pytest run in one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - (.*))?$", re.MULTILINE)
# what most tests import and no fault changes
_FOREIGN = (
    *("hypothesis", "networkx", "numpy", "onnx", "onnxruntime", "pytest", "safetensors.torch"),
    *("torch", "torch.export.experimental", "tvm", "tvm.relax.frontend.torch"),
)
_FRUITLESS = {2, 3, 4, 5}  # of pytest: interrupted (a file that cannot be imported too), its own error, no test


@dataclass(frozen=True)
class Run:
    """What a run of pytest said. `code` is None where it had no end, negative where a signal ended it.

    `failed` has the beginning of the reason for each test that did.
    """

    code: int | None
    failed: dict[str, str]
    output: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.code == 0

    @property
    def end(self) -> str:
        """How it ended, if no test failed."""
        if self.code is None:
            return f"no end after {self.seconds:.0f} s"
        return signal.Signals(-self.code).name if self.code < 0 else f"pytest's code {self.code}"

    @property
    def is_fruitless(self) -> bool:
        """Nothing was tested: no verdict."""
        return self.code in _FRUITLESS and not self.failed


def copy_project(target: Path, commit: str | None = None) -> None:
    """The files of a commit or, without one, those that git knows or would take, as they are now."""
    target.mkdir(parents=True)
    if commit is None:
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target / name)
    else:
        subprocess.run(["tar", "-x", "-C", target], input=_git("archive", commit), check=True)
    if (ROOT / ".venv").exists():
        (target / ".venv").symlink_to(ROOT / ".venv")


def name_commit(commit: str | None) -> str:
    """Its hash; of the working tree the last commit's, with a word on what has changed since."""
    found = _git("rev-parse", "--short", commit or "HEAD").decode().strip()
    return f"{found} and changes since" if commit is None and _git("status", "--porcelain") else found


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


class Tree:
    """A folder to plant faults in, and the process that runs tests there, with these modules imported beforehand."""

    def __init__(self, folder: Path, imported: Sequence[str] = _FOREIGN) -> None:
        self.folder, self._imported = folder, imported
        self._server: subprocess.Popen[str] | None = None

    def run_tests(self, tests: Sequence[str], limit: float, stop_early: bool = True) -> Run:
        """pytest in a process of its own, with caches that nobody has used before.

        Python's bytecode is not kept: a file changed twice within a second would look unchanged. What the compiler
        keeps between runs goes to a new folder: a fault must not hide behind what was built without it.
        """
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gf-faults-run-", ignore_cleanup_errors=True) as scratch:
            output = Path(scratch) / "output"
            options = [
                "-q",
                "-m",
                "not coverage",
                "-p",
                "no:cacheprovider",
                "-n",
                "0",
                "--tb=no",
                *(["-x"] if stop_early else []),
            ]
            additions = {
                "PYTHONPATH": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "GFCOMPILE_CACHE": f"{scratch}/cache",
                "TMPDIR": scratch,
                "BUILD_NUMBER": "1",  # else pytest cuts reasons to the width of a terminal
            }
            order = {"tree": str(self.folder), "arguments": [*options, *tests], "additions": additions}
            code = self._ask({**order, "output": str(output)}, limit)
            text = output.read_text(errors="replace") if output.exists() else ""
        return Run(code, dict(_FAILED.findall(text)), text, time.monotonic() - start)

    def _ask(self, order: dict[str, object], limit: float) -> int | None:
        """The code of the server's child; None if it had to be ended. What it has started ends with it."""
        if self._server is None:
            script = Path(__file__).with_name("warm.py")
            self._server = subprocess.Popen(
                [sys.executable, script, *self._imported],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        child = int(self._server.stdout.readline())
        try:
            in_time = bool(select.select([self._server.stdout], [], [], limit)[0])
        finally:
            with contextlib.suppress(ProcessLookupError):  # it made itself the first of a group
                os.killpg(child, signal.SIGKILL)
        code = int(self._server.stdout.readline())
        return code if in_time else None

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.communicate()
            self._server = None

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
