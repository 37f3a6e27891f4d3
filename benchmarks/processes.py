"""Peers in processes of their own, which take turns: a turn is a block of runs, as many as fit a given time.

So none warms another's caches or takes its threads, a noisy machine disturbs them alike, and a short run is seen both
right after the others' work and by itself. The processes are forked from one that has only imported things, since
importing takes longer than most runs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.rounds import summarise

Prepared = tuple[Callable[[], Any], dict[str, Any]]  # one run, and what is known of it beforehand
Prepare = Callable[[dict[str, Any], Path], Prepared]  # from the settings, in a folder that will be removed
Settings = Mapping[str, Mapping[str, Any]]  # of each peer

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["benchmarks.sections"])  # which imports all that peers need


@dataclass(frozen=True)
class Protocol:
    """How turns are taken. After `least` rounds no further one begins that would end after `seconds`."""

    most: int = 10
    least: int = 3
    seconds: float = float("inf")
    warm_up: int = 1
    block_seconds: float = 0.1
    starting: int = 1  # peers that make ready at the same time


@dataclass
class Found:
    """By peer: its times (`rounds.summarise`), what it said when it was ready, why it failed."""

    times: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


class Failed(Exception):  # noqa: N818 - a finding of the benchmark
    """A peer that cannot run here, and why."""


class Peer:
    """A process that prepares one run and then repeats it when asked."""

    def __init__(self, prepare: Prepare, settings: Mapping[str, Any]) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, prepare, dict(settings)))
        self._process.start()
        theirs.close()

    def facts(self) -> dict[str, Any]:
        """Waits until it is ready; to be called once."""
        return dict(self._receive())

    def take_turn(self, seconds: float) -> list[float]:
        """Seconds of each run of one block."""
        self.connection.send(seconds)
        return list(self._receive())

    def close(self) -> None:
        self.connection.close()
        self._process.join()

    def _receive(self) -> Any:
        try:
            answer = self.connection.recv()
        except EOFError:
            self._process.join()
            raise Failed(f"its process ended with code {self._process.exitcode}") from None
        if isinstance(answer, Failed):
            raise answer
        return answer


def run_block(run: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Repeat until the time is spent, at least once."""
    start = before = clock()
    runs: list[float] = []
    while not runs or before - start < seconds:
        run()
        after = clock()
        runs.append(after - before)
        before = after
    return runs


def take_turns(prepare: Prepare, settings: Settings, protocol: Protocol) -> Found:
    """Make every peer ready; then, round after round, give each its block."""
    found = Found()
    peers: dict[str, Peer] = {}
    try:
        for name, peer in _start(prepare, settings, protocol.starting, found):
            peers[name] = peer
        peers = {name: peers[name] for name in settings if name in peers}
        blocks: dict[str, list[list[float]]] = {name: [] for name in peers}
        start = time.perf_counter()
        for turn in range(protocol.warm_up + protocol.most):
            began = time.perf_counter()
            _one_round(peers, blocks, found, protocol.block_seconds)
            now = time.perf_counter()
            done = turn + 1 - protocol.warm_up
            if done >= protocol.least and now - start + (now - began) > protocol.seconds:
                break
        found.times = {name: summarise(blocks[name][protocol.warm_up :]) for name in peers}
    finally:
        for peer in peers.values():
            peer.close()
    return found


def ask(
    prepare: Prepare,
    settings: Settings,
    starting: int = 1,
    ready: Callable[[str, dict[str, Any]], None] = lambda *_: None,
) -> Found:
    """What peers say when they are ready, and no more of them: for work that has no runs to be timed.

    `ready` hears it at once.
    """
    found = Found()
    for name, peer in _start(prepare, settings, starting, found):
        peer.close()
        ready(name, found.facts[name])
    return found


def _start(prepare: Prepare, settings: Settings, starting: int, found: Found) -> Iterator[tuple[str, Peer]]:
    """Peers as they become ready, while no more than `starting` of them are on their way; the caller closes them."""
    waiting = list(settings)
    under_way: dict[Any, tuple[str, Peer]] = {}  # by connection
    try:
        while waiting or under_way:
            while waiting and len(under_way) < starting:
                name = waiting.pop(0)
                peer = Peer(prepare, settings[name])
                under_way[peer.connection] = name, peer
            for ready in wait(list(under_way)):
                name, peer = under_way.pop(ready)
                try:
                    found.facts[name] = peer.facts()
                except Failed as failure:
                    _drop(name, failure, {name: peer}, found)
                    continue
                yield name, peer
    finally:
        for _, peer in under_way.values():
            peer.close()


def _one_round(peers: dict[str, Peer], blocks: dict[str, list[list[float]]], found: Found, seconds: float) -> None:
    for name in list(peers):
        try:
            blocks[name].append(peers[name].take_turn(seconds))
        except Failed as failure:
            _drop(name, failure, peers, found)


def _drop(name: str, failure: Failed, peers: dict[str, Peer], found: Found) -> None:
    found.failed[name] = str(failure)
    found.facts.pop(name, None)
    peers.pop(name).close()


def _serve(connection: Connection, prepare: Prepare, settings: dict[str, Any]) -> None:
    os.dup2(2, 1)  # what a library prints is no part of the benchmark's output
    with closing(connection), tempfile.TemporaryDirectory() as scratch:
        try:
            run, facts = prepare(settings, Path(scratch))
        except Exception as error:  # noqa: BLE001 - any failure is this peer's, to be reported in the table
            reason = str(error).strip().splitlines() or [""]
            connection.send(Failed(f"{type(error).__name__}: {reason[0][:200]}"))
            return
        connection.send(facts)
        while True:
            try:
                seconds = connection.recv()
            except EOFError:
                return
            try:
                connection.send(run_block(run, seconds))
            except Exception as error:  # noqa: BLE001 - as above
                connection.send(Failed(f"{type(error).__name__}: {str(error)[:200]}"))
                return
