"""TVM's tracker and servers on this machine, as processes of a test's own."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gfcompile.errors import UserError
from gfcompile.tuning.tracker import Tracker
from tests.missing import skip_for_want

HOST = "127.0.0.1"
_WITHOUT_TORCH = str(Path(__file__).with_name("on_boards"))
_PATIENCE_SECONDS = 300.0  # for a process to start: a server under qemu, on a busy machine


@dataclass(frozen=True)
class Process:
    """A process and all that it starts, which form a group."""

    process: subprocess.Popen

    def kill(self) -> None:
        """The whole group at once, as by a power cut; again is no harm."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as finder:
        finder.bind((HOST, 0))
        return finder.getsockname()[1]


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Process]:
    """The command, until the block ends."""
    process = Process(subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL))
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def running_tracker() -> Iterator[Tracker]:
    """A tracker of one's own, listening on this machine only."""
    for module in ("tornado", "psutil", "cloudpickle"):
        if importlib.util.find_spec(module) is None:
            skip_for_want(f"{module} is not installed; pip install 'gfcompile[rpc]'")
    port = free_port()
    command = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--silent", f"--host={HOST}"]
    command += [f"--port={port}", f"--port-end={port + 1}"]
    tracker = Tracker(HOST, port)
    with running(command, _environment()) as process:
        wait_until(lambda: answers(tracker), process)
        yield tracker


@contextmanager
def running_boards(
    tracker: Tracker,
    key: str,
    count: int = 1,
    python: Sequence[str] = (sys.executable,),
    environment: Mapping[str, str] | None = None,
) -> Iterator[list[Process]]:
    """Servers with this key, all known to the tracker before the block starts."""
    command = [*python, "-m", "tvm.exec.rpc_server", "--silent", f"--host={HOST}", f"--key={key}"]
    command += [f"--tracker={tracker.host}:{tracker.port}"]
    with ExitStack() as stack:
        boards = []
        for _ in range(count):
            port = free_port()
            place = [f"--port={port}", f"--port-end={port + 1}"]
            boards.append(stack.enter_context(running([*command, *place], environment or _environment())))
        wait_until(lambda: tracker.count_boards()[key] == count, *boards)
        yield boards


def _environment() -> dict[str, str]:
    """A board has TVM's runtime and no PyTorch."""
    return {**os.environ, "TVM_USE_RUNTIME_LIB": "1", "PYTHONPATH": _WITHOUT_TORCH}


def answers(tracker: Tracker) -> bool:
    """Whether it has started to listen."""
    try:
        tracker.count_boards()
    except UserError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], *doers: Process) -> None:
    """Look again and again; an error if it never comes to be, or a process that should do it has ended."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        for process in (doer.process for doer in doers):
            if process.poll() is not None:
                raise RuntimeError(f"{process.args} ended with exit code {process.returncode}")
        if time.monotonic() > end:
            raise RuntimeError("nothing happened")
        time.sleep(0.05)
