"""What is said where the tracker is not there."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from gfcompile.errors import UserError
from gfcompile.tuning.rpc import RpcRunner
from tests.tuning.servers import HOST, free_port


def test_no_tracker() -> None:
    port = free_port()
    with pytest.raises(UserError) as refusal:
        RpcRunner(HOST, port, "pi", "measured")
    start = f"python -m tvm.exec.rpc_tracker --port {port}"
    problem = f"no tracker answers ([Errno 111] Connection refused); start one: {start}"
    assert str(refusal.value) == f"--rpc 127.0.0.1:{port}: {problem}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "text"),
    [
        (b"HTTP/1.1 400", "what answers there is no tracker of TVM; check the port"),
        (b"", "the tracker stopped answering (connection reset); check that it runs, and the port"),
    ],
)
def test_something_else_answers(said: bytes, text: str) -> None:
    with socket.create_server((HOST, 0)) as server, ThreadPoolExecutor(1) as threads:

        def answer() -> None:
            line, _ = server.accept()
            with line:
                line.recv(4)
                line.sendall(said)

        done = threads.submit(answer)
        port = server.getsockname()[1]
        with pytest.raises(UserError) as refusal:
            RpcRunner(HOST, port, "pi", "measured")
        done.result()
    assert str(refusal.value) == f"--rpc 127.0.0.1:{port}: {text}"
