"""Changes that know a format: what they make gets past the outer shell of it (a length, a checksum of zip, protobuf's
tags), where changed bytes alone seldom do. Each is a function of the bytes and a generator, the same for the same seed.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutate = Callable[[bytes, Random], bytes]

WORDS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 1.5, 1e308, float("nan"), float("inf"),
    "", "0", "é\U0001f600", "a\nb\x1b[31m", "../../x", "float32", "x" * 300, [], {}, [0], [2, 3], [[]], {"": 0},
)  # fmt: skip
SIZES = (0, 1, 2, -1, 7, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
MEMBERS = ("x.npy", "y.npy", "x0.npy", "x1.npy", "x", "../x.npy", "a/b.npy", "\n")
TOKEN = re.compile(rb"""\s+|[\w.+-]+|"[^"\n]*"|'[^'\n]*'|.""", re.DOTALL)


def change_several(change: Mutate, data: bytes, random: Random) -> bytes:
    for _ in range(random.randint(1, 3)):
        data = change(data, random)
    return data


def change_bytes(data: bytes, random: Random) -> bytes:
    """A flipped bit, a cut, a part doubled, removed or put elsewhere."""
    if not data:
        return bytes([random.randrange(256)])
    at, stop = sorted(random.choices(range(len(data) + 1), k=2))
    way = random.randrange(5)
    if way == 0:
        at = random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
    if way == 1:
        return data[:at]
    if way == 2:
        return data[:at] + data[stop:]
    if way == 3:
        return data[:stop] + data[at:]
    other = random.randrange(len(data))
    return data[:other] + data[at:stop] + data[other:]


def change_tokens(data: bytes, random: Random) -> bytes:
    """Words of a text swapped, doubled, removed, or replaced by another of it or by a number at some edge."""
    tokens = TOKEN.findall(data)
    words = [index for index, token in enumerate(tokens) if not token.isspace()]
    if not words:
        return change_bytes(data, random)
    at, other = random.choice(words), random.choice(words)
    way = random.randrange(5)
    if way == 0:
        tokens[at], tokens[other] = tokens[other], tokens[at]
    elif way == 1:
        tokens[at] = tokens[other]
    elif way == 2:
        tokens[at] = b""
    elif way == 3:
        tokens[at] += tokens[at]
    else:
        tokens[at] = json.dumps(random.choice(WORDS)).encode()
    return b"".join(tokens)


def change_json(data: bytes, random: Random) -> bytes:
    """A value, a key or a member somewhere in the tree; tokens of what is no JSON."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return change_tokens(data, random)
    return json.dumps(_change_tree(tree, random), indent=1 if b"\n" in data else None).encode()


def _change_tree(tree: Any, random: Random) -> Any:
    if not isinstance(tree, (dict, list)) or not tree or random.random() < 0.1:
        return random.choice(WORDS)
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key, other = random.choice(keys), random.choice(keys)
    way = random.randrange(8)
    if way == 0:
        del tree[key]
    elif way == 1:
        tree[key] = tree[other]
    elif way == 2 and isinstance(tree, dict):
        tree[str(random.choice(WORDS))] = tree.pop(key)
    elif way == 2:
        tree.append(tree[key])
    else:
        tree[key] = _change_tree(tree[key], random)
    return tree


def change_tensors(data: bytes, random: Random) -> bytes:
    """The header of a safetensors file, with its length made right."""
    length = int.from_bytes(data[:8], "little")
    if random.random() < 0.2 or length > len(data) - 8:
        return change_bytes(data, random)
    header = change_json(data[8 : 8 + length], random)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def change_bundle(separator: bytes, first: Mutate, others: Mutate) -> Mutate:
    """One of several files that lie in one input."""

    def change(data: bytes, random: Random) -> bytes:
        parts = data.split(separator)
        at = random.randrange(len(parts)) if random.random() < 0.3 else 0
        parts[at] = (others if at else first)(parts[at], random)
        return separator.join(parts)

    return change


def change_npy(data: bytes, random: Random) -> bytes:
    """The dictionary in the header, with its length made right."""
    length = int.from_bytes(data[8:10], "little")
    if not data.startswith(b"\x93NUMPY\x01") or length > len(data) - 10 or random.random() < 0.2:
        return change_bytes(data, random)
    header = change_tokens(data[10 : 10 + length], random)
    return data[:8] + min(len(header), 65535).to_bytes(2, "little") + header + data[10 + length :]


def change_zip(member: Mutate, compressions: Sequence[int] = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)) -> Mutate:
    """A member of the archive, written anew with what zip says of it; or bytes of its records."""

    def change(data: bytes, random: Random) -> bytes:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as file:
                members = {info.filename: file.read(info) for info in file.infolist()}
        except (zipfile.BadZipFile, zlib.error, ValueError, OSError, RuntimeError, EOFError, NotImplementedError):
            return change_bytes(data, random)
        if not members or random.random() < 0.3:
            return _change_record(data, random)
        name = random.choice(list(members))
        way = random.randrange(6)
        if way == 0:
            members[random.choice(MEMBERS)] = members.pop(name)
        elif way == 1:
            del members[name]
        else:
            members[name] = member(members[name], random)
        out = io.BytesIO()
        compression = random.choice(compressions)
        with zipfile.ZipFile(out, "w", compression) as file:
            for each, content in members.items():
                file.writestr(zipfile.ZipInfo(each, (2026, 1, 1, 0, 0, 0)), content, compression)
        return out.getvalue()

    return change


def _change_record(data: bytes, random: Random) -> bytes:
    """A field of a local header, of the directory or of its end."""
    places = [found.start() for found in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", data)]
    if not places:
        return change_bytes(data, random)
    at = random.choice(places) + 4 + 2 * random.randrange(20)
    width = random.choice([2, 4])
    field = (random.choice(SIZES) & (1 << 8 * width) - 1).to_bytes(width, "little")
    return data[:at] + field + data[at + width :]


def change_protobuf(parse: Callable[[bytes], Any]) -> Mutate:
    """A field of a message or of one inside it."""

    def change(data: bytes, random: Random) -> bytes:
        from google.protobuf.message import DecodeError

        try:
            message = parse(data)
        except DecodeError:
            return change_bytes(data, random)
        _change_message(message, random)
        return message.SerializeToString()

    return change


def _change_message(message: Any, random: Random) -> None:
    fields = message.ListFields()
    if not fields:
        return
    descriptor, value = random.choice(fields)
    is_list = hasattr(value, "append") or hasattr(value, "add")
    if random.random() < 0.05:
        message.ClearField(descriptor.name)
    elif is_list and len(value):
        _change_list(value, random)
    elif hasattr(value, "ListFields"):
        _change_message(value, random)
    elif not is_list:
        _set(message, descriptor.name, value, random)


def _change_list(values: Any, random: Random) -> None:
    at, other = random.randrange(len(values)), random.randrange(len(values))
    way = random.randrange(6)
    if way == 0:
        del values[at]
    elif way == 1 and hasattr(values[at], "CopyFrom"):
        values.add().CopyFrom(values[at])
    elif way == 1:
        values.append(values[at])
    elif hasattr(values[at], "ListFields"):
        if way == 2:
            values[at].CopyFrom(values[other])
        else:
            _change_message(values[at], random)
    elif isinstance(values[at], int) and random.random() < 0.7:
        _try(values.__setitem__, at, random.choice(SIZES))
    else:
        _try(lambda: values.__setitem__(at, values[other]))


def _set(message: Any, name: str, value: Any, random: Random) -> None:
    if isinstance(value, bytes):
        _try(setattr, message, name, change_bytes(value, random))
    elif isinstance(value, str):
        setattr(message, name, random.choice(["", value * 2, "x", "y", "a\nb\x1b[31m", *map(str, range(3))]))
    elif isinstance(value, float):
        setattr(message, name, random.choice([0.0, -1.0, 1e30, float("nan"), float("inf")]))
    else:
        _try(setattr, message, name, random.choice(SIZES))


def _try(change: Callable[..., object], *arguments: Any) -> None:
    """Not every number or text fits every field of protobuf; then nothing changes."""
    try:
        change(*arguments)
    except ValueError:
        return
