"""Models in `.pt` and `.pt2` files: loaded, and run once if they are as small as the seeds.

Python tells its audit hooks of what a program does to the world. While a file is read none of that may happen, whether
the file is refused or not.
"""

from __future__ import annotations

import os
import pickletools
import sys
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import torch

from gfcompile.frontend.load import load_model
from gfcompile.frontend.trace import run_once
from tests.fuzz.check import Check, refused
from tests.fuzz.mutate import change_bytes, change_json, change_tokens, change_zip

DEEDS = ("os.", "subprocess.", "ctypes.", "socket.", "shutil.", "pty.", "signal.", "urllib.", "tempfile.")
SEEN = ("os.listdir", "os.scandir", "os.walk", "os.fwalk")  # imports look for files
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MOST_VALUES = 1 << 16
watching = False
deeds: list[str] = []


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not watching:
        return
    opens_to_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if opens_to_write or (event.startswith(DEEDS) and event not in SEEN):
        deeds.append(f"{event}{arguments!r}")


sys.addaudithook(watch)


def read(data: bytes) -> None:
    """Both readers see every input: a file's name is its sender's choice too."""
    global watching
    for name in ("a.pt", "a.pt2"):
        Path(name).write_bytes(data)
        deeds.clear()
        watching = True
        try:
            loaded = refused(load_model, name)
        finally:
            watching = False
        assert not deeds, deeds
        if loaded is not None and sum(tensor.numel() for tensor in loaded.module.parameters()) < MOST_VALUES:
            refused(run_once, loaded.module, (torch.zeros(1, 3, 8, 8),))


def change_pickle(data: bytes, random: Random) -> bytes:
    """An instruction removed, doubled, or put elsewhere; or a name replaced by another of the pickle."""
    try:
        starts = [at for _, _, at in pickletools.genops(data)]
    except ValueError:
        return change_bytes(data, random)
    parts = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)])]
    at, other = (random.randrange(len(parts)) for _ in range(2))
    way = random.randrange(5)
    if way == 0:
        del parts[at]
    elif way == 1:
        parts.insert(at, parts[other])
    elif way == 2:
        parts[at] = parts[other]
    elif way == 3:
        names = [index for index, part in enumerate(parts) if part.startswith(b"c")]
        if names:
            parts[random.choice(names)] = random.choice(NAMES)
    else:
        parts[at] = change_bytes(parts[at], random)
    return b"".join(parts)


NAMES = tuple(
    f"c{module}\n{name}\n".encode()
    for module, name in (
        ("os", "system"), ("torch.nn.modules.container", "Sequential"), ("torch.nn.modules.rnn", "LSTM"),
        ("torch.nn.modules.transformer", "TransformerEncoderLayer"), ("functools", "partial"),
        ("__builtin__", "getattr"),
        ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"), ("collections", "deque"),
        ("torch._tensor", "_rebuild_from_type_v2"), ("torch.nn.functional", "relu"), ("__builtin__", "range"),
        ("torch", "FloatStorage"), ("torch", "LongStorage"), ("torch.nn.modules.activation", "MultiheadAttention"),
    )
)  # fmt: skip


def change_record(data: bytes, random: Random) -> bytes:
    """As what the record looks like."""
    if data.startswith(b"\x80"):
        return change_pickle(data, random)
    if data.startswith((b"{", b"[")):
        return (change_json if random.random() < 0.7 else change_tokens)(data, random)
    return change_bytes(data, random)


def change(data: bytes, random: Random) -> bytes:
    return (change_zip(change_record, [zipfile.ZIP_STORED]) if data.startswith(b"PK") else change_pickle)(data, random)


CHECK = Check(read, change)
