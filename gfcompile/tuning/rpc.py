"""Trials on a board, through TVM's RPC: the board needs TVM's runtime and Python, no compiler.

A trial is one session: a board is asked for, the library goes up, its one function runs, the answer comes back, and the
board is free again. Three clocks guard it, each for what the one before cannot see. The library ends a trial that
hangs; the server ends a session whose library does; and here nobody waits for a board that has gone silent.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from tvm import rpc

from gfcompile.errors import UserError
from gfcompile.tuning.local import BLOCK_SECONDS, TURNS, allowed_seconds
from gfcompile.tuning.tracker import Claim, Tracker
from gfcompile.tuning.trial import Kind, Measurement, TrialFailed, read_measurement

_FUNCTION = "gf_trial"  # of runtime/trial/gf_trial_rpc.c
_TRANSFER_SECONDS = 60.0  # for the library to arrive, on top of the trial's own time
_GRACE_SECONDS = 10.0  # for the server's word that a session took too long
_PATIENCE_SECONDS = 120.0  # for a board that is busy, or starts again

_Order = tuple[int, float, float]  # the function's arguments: turns, seconds of a block, seconds of the whole trial


@dataclass(frozen=True)
class BoardState:
    """What a board said of itself as a trial ended; None where its Linux does not tell."""

    emulated: bool
    governor: str | None = None
    khz: int | None = None
    millicelsius: int | None = None


class RpcRunner:
    """Runs trials on the boards that a tracker knows by one key; from as many threads at once as there are boards."""

    form: Kind = "library"

    def __init__(
        self,
        host: str,
        port: int,
        key: str,
        kind: str,
        turns: int = TURNS,
        block_seconds: float = BLOCK_SECONDS,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """`kind` is "measured", or "emulated" where the boards are not real; `patience` is for a board to be free."""
        self.kind = kind
        self.turns, self.block_seconds = turns, block_seconds
        self._key = key
        self._patience = patience
        self._tracker = Tracker(host, port)
        self._states: dict[str, BoardState] = {}
        self._tracker.require(key)

    def boards(self) -> int:
        """How many there are now, busy ones included; a UserError if none is left."""
        return self._tracker.require(self._key)

    def read_machine(self) -> dict[str, Any]:
        """The hottest board of those that have answered, with what it said."""
        states = sorted(self._states.items(), key=lambda item: item[1].millicelsius or 0)
        if not states:
            return {}
        address, state = states[-1]
        known = {name: value for name, value in vars(state).items() if value is not None}
        return {"cpu": f"board {self._key} at {address}", **known}

    def read_state(self) -> dict[str, BoardState]:
        """What each board, by its address, said in its last trial."""
        return dict(self._states)

    def run(self, built: Path, timeout: float) -> Measurement:
        """Measure on the next free board; `timeout` is for what the kernels need, as for a trial of this machine.

        Raises TrialFailed, or UserError if there is no board any more.
        """
        library = bytearray(built.read_bytes())
        allowed = allowed_seconds(timeout, self.turns, self.block_seconds, self.kind == "emulated")
        claim = self._tracker.claim(self._key, self._patience)
        board = f"the board at {claim.host}:{claim.port}"
        order = (self.turns, float(self.block_seconds), float(allowed))
        said, _, measured = _call(claim, board, library, order).partition("\n")
        state = BoardState(**json.loads(said))
        self._states[f"{claim.host}:{claim.port}"] = state
        if state.emulated and self.kind == "measured":
            raise UserError(f"--key '{self._key}': {board} is emulated, its times are no board's; add --emulated")
        return read_measurement(measured)

    def close(self) -> None:
        """Nothing is held between trials: each ends its session."""


def _call(claim: Claim, board: str, library: bytearray, order: _Order) -> str:
    """The library's answer. In a thread of its own: TVM's client waits for ever for a board that lost its power."""
    answers: SimpleQueue[str | TrialFailed] = SimpleQueue()
    session_seconds = order[-1] + _TRANSFER_SECONDS

    def hold_session() -> None:
        answer: str | TrialFailed = TrialFailed(f"{board}: the session broke off")  # by what is no error of TVM's
        try:
            answer = _run_session(claim, library, order, session_seconds)
        except RuntimeError as error:  # TVM's errors are of this class
            answer = TrialFailed(_explain(error, board))
        finally:
            answers.put(answer)

    threading.Thread(target=hold_session, daemon=True, name=f"trial on {claim.host}").start()
    try:
        answer = answers.get(timeout=session_seconds + _GRACE_SECONDS)
    except Empty:
        raise TrialFailed(f"{board} went silent: no answer in {session_seconds + _GRACE_SECONDS:g} s") from None
    if isinstance(answer, TrialFailed):
        raise answer
    return answer


def _run_session(claim: Claim, library: bytearray, order: _Order, session_seconds: float) -> str:
    session = rpc.connect(claim.host, claim.port, claim.matchkey, session_seconds)
    try:
        session.upload(library, "trial.so")
        answer = session.load_module("trial.so")[_FUNCTION](*order)
    finally:
        session.get_function("CloseRPCConnection")()
    if not isinstance(answer, str):
        raise RuntimeError("it had no memory left for an answer")
    return answer


def _explain(error: RuntimeError, board: str) -> str:
    """TVM's words, of which most are of its own insides."""
    said = " ".join(str(error).split())
    if "session has expired" in said:
        return f"{board} ended the session, it took too long"
    if "kShutdown" in said or "SockChannel" in said:
        return f"{board} was lost during the trial: its connection closed"
    if "Connect to" in said or "cannot find server that matches" in said:
        return f"{board} does not accept connections: {said}"
    return f"{board}: {said}"
