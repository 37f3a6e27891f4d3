"""Trials built in processes of their own: LLVM may end its process, or think for ever, and the session goes on."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import tvm
from tvm import tirx

from gfcompile.codegen.link import require_linker
from gfcompile.codegen.schedules.choices import Option
from gfcompile.errors import UserError
from gfcompile.targets import Target
from gfcompile.tuning.space import Candidate, Drawn, draw, draw_untuned
from gfcompile.tuning.trial import REFERENCE, Kind, TrialFailed, TrialKernel, build_trial, compile_for_trial

Make = Callable[[tirx.PrimFunc, Target, Candidate], Drawn]  # a function of a module: workers import it
BUILD_SECONDS = 60.0
_WORDS = 200  # of an error
_Key = TypeVar("_Key")  # the caller's


@dataclass(frozen=True)
class Recipe:
    """How a worker builds: the same for all trials."""

    target: Target
    make: Make
    folder: Path
    kind: Kind


@dataclass(frozen=True)
class Built:
    """A trial at `path`, of the candidate as it came out."""

    path: Path
    candidate: Candidate
    options: Mapping[str, tuple[Option, ...]]


@dataclass(frozen=True)
class _Order:
    key: Any
    number: int
    function_json: str
    candidate: Candidate


@dataclass(eq=False)
class _Worker:
    process: ForkServerProcess
    connection: Connection
    order: _Order | None = None
    allowed: float = 0.0  # seconds
    deadline: float = 0.0


class BuildPool(Generic[_Key]):
    """Builds trials below `folder`, which is this pool's own. Use it as a context, or close it."""

    def __init__(
        self,
        target: Target,
        workers: int,
        folder: Path,
        kind: Kind = "program",
        make: Make = draw,
        timeout: float = BUILD_SECONDS,
    ) -> None:
        require_linker(target)
        self._recipe = Recipe(target, make, folder.absolute(), kind)
        self.timeout = timeout  # seconds, of what is handed to a worker from now on
        self._context = multiprocessing.get_context("forkserver")
        # The server of forks loads what takes seconds, once; a new worker is a fork of it.
        self._context.set_forkserver_preload([__name__, make.__module__])
        self._waiting: deque[_Order] = deque()
        self._count = 0
        self._workers = [self._start() for _ in range(workers)]

    def submit(self, key: _Key, function_json: str, candidate: Candidate) -> None:
        """Have a trial built of the unscheduled function (`tvm.ir.save_json`), which comes back under `key`."""
        self._waiting.append(_Order(key, self._count, function_json, candidate))
        self._count += 1
        self._hand_out()

    @property
    def outstanding(self) -> int:
        """Trials that were submitted and have not come back."""
        return len(self._waiting) + sum(worker.order is not None for worker in self._workers)

    def __iter__(self) -> Iterator[tuple[_Key, Built | TrialFailed]]:
        """What is done, until nothing is outstanding; more may be submitted meanwhile."""
        while self.outstanding:
            busy = {worker.connection: worker for worker in self._workers if worker.order is not None}
            nearest = min(worker.deadline for worker in busy.values())
            done = wait(list(busy), timeout=max(0.0, nearest - time.monotonic()))
            for connection in done:
                yield self._receive(busy[connection])  # type: ignore[index]
            for worker in busy.values():
                if worker.order is not None and worker.connection not in done and worker.deadline <= time.monotonic():
                    yield self._replace(worker, f"the build was ended after {worker.allowed:.3g} s")

    def close(self) -> None:
        """End the workers, whatever they do."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()
        self._waiting.clear()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._recipe), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _hand_out(self) -> None:
        for index, worker in enumerate(self._workers):
            if worker.order is None and self._waiting:
                if not worker.process.is_alive():  # ended while it had nothing to do
                    _end(worker)
                    worker = self._workers[index] = self._start()
                worker.order = self._waiting.popleft()
                worker.allowed, worker.deadline = self.timeout, time.monotonic() + self.timeout
                # One that ends this moment is found at the connection's end.
                with contextlib.suppress(BrokenPipeError):
                    worker.connection.send(worker.order)

    def _receive(self, worker: _Worker) -> tuple[_Key, Built | TrialFailed]:
        try:
            result: Built | TrialFailed = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            return self._replace(worker, f"the build crashed: {_how_it_ended(worker.process.exitcode)}")
        key: _Key = worker.order.key  # type: ignore[union-attr]
        worker.order = None
        self._hand_out()
        return key, result

    def _replace(self, worker: _Worker, reason: str) -> tuple[_Key, TrialFailed]:
        _end(worker)
        key = worker.order.key  # type: ignore[union-attr]
        self._workers[self._workers.index(worker)] = self._start()
        self._hand_out()
        return key, TrialFailed(reason)


def _end(worker: _Worker) -> None:
    """The worker and what it has started, such as a linker."""
    if worker.process.is_alive():
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        except ProcessLookupError:  # it has not come as far as to lead a group
            worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _work(connection: Connection, recipe: Recipe) -> None:
    """A worker: orders in, paths or failures out, until the session is gone."""
    os.setsid()  # so that it can be ended with all it has started; the terminal's interrupts are the session's
    builder = _Builder(recipe)
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        connection.send(builder.build(order))


class _Builder:
    """What a worker remembers: the references, one per function."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._references: dict[str, TrialKernel | tirx.PrimFunc] = {}

    def build(self, order: _Order) -> Built | TrialFailed:
        recipe = self._recipe
        folder = recipe.folder / f"{order.number:05d}"
        try:
            reference = self._reference(order.function_json)
            function = tvm.ir.load_json(order.function_json)
            drawn = recipe.make(function, recipe.target, order.candidate)
            target, kind = recipe.target, recipe.kind
            path = build_trial(function, drawn.function, reference, target, folder, kind, drawn.prepare)
            return Built(path, drawn.candidate, drawn.options)
        except TrialFailed as failure:
            return failure
        except (RuntimeError, ValueError, TypeError, LookupError, UserError) as error:  # TVM's are of these classes
            return TrialFailed(f"the candidate cannot be built: {_last_words(error)}")

    def _reference(self, function_json: str) -> TrialKernel | tirx.PrimFunc:
        """Compiled by the first worker that needs it, or by two at a time: they write the same. A GPU's is not."""
        digest = hashlib.sha256(function_json.encode()).hexdigest()
        if digest not in self._references:
            untuned = draw_untuned(tvm.ir.load_json(function_json), self._recipe.target)
            self._references[digest] = self._compile_reference(untuned, digest)
        return self._references[digest]

    def _compile_reference(self, untuned: Drawn, digest: str) -> TrialKernel | tirx.PrimFunc:
        if self._recipe.target.kind == "cuda":
            return untuned.function
        folder = self._recipe.folder / f"reference-{digest[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        return compile_for_trial(untuned.function, REFERENCE, self._recipe.target, folder, untuned.prepare)


def _last_words(error: Exception) -> str:
    """TVM's errors are pages of traces, with what is wrong in the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:_WORDS] if lines else type(error).__name__
