"""TVM's RPC tracker, asked for boards: who is there, and whose turn is it.

TVM's own client waits for ever where no board is free, and for a minute where no tracker is: it cannot be told to do
otherwise. The messages are few, so they are sent from here, with TVM's own words for them.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tvm.rpc.base import RPC_TRACKER_MAGIC, TrackerCode, recvall, recvjson, sendjson

from gfcompile.errors import UserError

_ANSWER_SECONDS = 10.0  # a tracker answers at once; over a slow network within this


@dataclass(frozen=True)
class Claim:
    """A board that is ours for one session, until somebody connects with `matchkey`."""

    host: str
    port: int
    matchkey: str


@dataclass(frozen=True)
class Tracker:
    """The tracker at an address; each question is a connection of its own, so threads may ask at the same time."""

    host: str
    port: int

    def count_boards(self) -> Counter[str]:
        """How many boards are there, free or busy, by key."""
        with self._connect() as line:
            sendjson(line, [TrackerCode.SUMMARY])
            code, summary = recvjson(line)
        if code != TrackerCode.SUCCESS:
            raise UserError(f"{self._where()}: the tracker refused to list its boards; is it that of TVM 0.27?")
        return Counter(board["key"].removeprefix("server:") for board in summary["server_info"])

    def require(self, key: str) -> int:
        """The number of boards with this key; one at least, or a UserError that says which keys there are."""
        boards = self.count_boards()
        if not boards[key]:
            others = ", ".join(f"'{other}'" for other in sorted(boards))
            known = f"it knows {others}" if others else "it knows none at all"
            start = f"python -m tvm.exec.rpc_server --tracker {self.host}:{self.port} --key {key}"
            raise UserError(f"{self._where()}: no board has --key '{key}' ({known}); start on one: {start}")
        return boards[key]

    def claim(self, key: str, patience: float) -> Claim:
        """Wait until a board is free: `patience` seconds at most, in which a board may also come back."""
        end = time.monotonic() + patience
        with self._connect() as line:
            sendjson(line, [TrackerCode.REQUEST, key, "", 1])
            while not select.select([line], [], [], 1.0)[0]:
                if time.monotonic() > end:
                    boards = self.require(key)
                    busy = "the one board is" if boards == 1 else f"all {boards} boards are"
                    problem = f"{busy} busy with others' sessions for {patience:g} s"
                    raise UserError(f"{self._where()}: --key '{key}': {problem}; wait for them, or add a board")
            code, address = recvjson(line)
        if code != TrackerCode.SUCCESS:
            raise UserError(f"{self._where()}: the tracker refused --key '{key}'; is it that of TVM 0.27?")
        return Claim(*address)

    @contextmanager
    def _connect(self) -> Iterator[socket.socket]:
        """A connection that has shaken hands. Whatever breaks while it is in use is a UserError."""
        hello = struct.pack("<i", RPC_TRACKER_MAGIC)
        try:
            line = socket.create_connection((self.host, self.port), _ANSWER_SECONDS)
        except OSError as error:
            start = f"python -m tvm.exec.rpc_tracker --port {self.port}"
            raise UserError(f"{self._where()}: no tracker answers ({error}); start one: {start}") from error
        with line:
            try:
                line.sendall(hello)
                if recvall(line, len(hello)) != hello:
                    raise UserError(f"{self._where()}: what answers there is no tracker of TVM; check the port")
                yield line
            except (OSError, json.JSONDecodeError) as error:
                lost = f"the tracker stopped answering ({error or type(error).__name__})"
                raise UserError(f"{self._where()}: {lost}; check that it runs, and the port") from error

    def _where(self) -> str:
        return f"--rpc {self.host}:{self.port}"
