"""Peers in processes of their own, asked in turn for one run at a time.

So none warms another's caches or takes its threads, and a noisy machine disturbs them alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2
Prepared = tuple[Callable[[], Any], dict[str, Any]]  # one run, and what is known of it beforehand


class Failed(Exception):  # noqa: N818 - a finding of the benchmark
    """A peer that cannot run here, and why."""


class Peer:
    """A process that runs `python -m MODULE --serve SETTINGS`; `facts` is what it says when it is ready."""

    def __init__(self, module: str, settings: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", module, "--serve", json.dumps(settings)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.facts = self._read()

    def run(self) -> float:
        """Seconds of one run."""
        assert self._process.stdin is not None
        self._process.stdin.write("run\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"failed": f"its process ended with code {self._process.wait()}"}
        if "failed" in answer:
            raise Failed(answer["failed"])
        return dict(answer)


def serve(settings: str, prepare: Callable[[dict[str, Any], Path], Prepared]) -> int:
    """The peer's side: make ready in a folder that will be removed, then answer each line with the time of one run."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        try:
            run, facts = prepare(json.loads(settings), Path(scratch))
        except Exception as error:  # noqa: BLE001 - any failure is this peer's, to be reported in the table
            reason = str(error).strip().splitlines() or [""]
            say(failed=f"{type(error).__name__}: {reason[0][:200]}")
            return 0
        say(**facts)
        for _ in sys.stdin:
            start = time.perf_counter()
            run()
            say(seconds=time.perf_counter() - start)
    return 0


def take_turns(
    module: str, settings: Mapping[str, Mapping[str, Any]], repeats: int, warm_up: int = WARM_UP
) -> tuple[dict[str, list[float]], dict[str, dict[str, Any]], dict[str, str]]:
    """(seconds, facts, failures) of each peer by name; the peers run one after the other, round after round."""
    peers: dict[str, Peer] = {}
    failures: dict[str, str] = {}
    times: dict[str, list[float]] = {}
    try:
        for name, given in settings.items():
            try:
                peers[name] = Peer(module, given)
            except Failed as failure:
                failures[name] = str(failure)
        for turn in range(warm_up + repeats):
            for name, peer in peers.items():
                seconds = peer.run()
                if turn >= warm_up:
                    times.setdefault(name, []).append(seconds)
    finally:
        for peer in peers.values():
            peer.close()
    return times, {name: peer.facts for name, peer in peers.items()}, failures
