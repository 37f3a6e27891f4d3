"""The distinct kernels of a step that a template leaves choices in, with how often the step calls each."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from gfcompile.codegen.program import Program
from gfcompile.errors import UserError
from gfcompile.tuning.keys import kernel_hash

KERNELS = "kernels.json.gz"  # in an artifact's folder of graphs
_TRAINING = ("train", "train_features")


@dataclass(frozen=True)
class Task:
    """One kernel: `calls` in a training step."""

    kernel: str  # its hash
    name: str
    function: tirx.PrimFunc
    calls: int


def list_tasks(programs: Iterable[Program]) -> list[Task]:
    """Of the programs that train; equal kernels are one task, whatever they are called."""
    functions: dict[str, tuple[str, tirx.PrimFunc]] = {}
    calls: Counter[str] = Counter()
    for program in programs:
        if program.name not in _TRAINING:
            continue
        hashes = {name: kernel_hash(function) for name, function in program.functions.items()}
        for name, function in program.functions.items():
            functions.setdefault(hashes[name], (name, function))
        if program.name == _TRAINING[0]:  # the other one is a part of it
            calls.update(hashes[call.kernel] for call in program.calls)
    return [Task(kernel, name, function, calls[kernel]) for kernel, (name, function) in functions.items()]


def write_tasks(tasks: Iterable[Task]) -> bytes:
    """For an artifact: it can be tuned without its model."""
    rows = [{"name": task.name, "calls": task.calls, "function": tvm.ir.save_json(task.function)} for task in tasks]
    return gzip.compress(json.dumps(rows).encode(), mtime=0)


def read_tasks(artifact: Path) -> list[Task]:
    path = artifact / "graphs" / KERNELS
    try:
        rows = json.loads(gzip.decompress(path.read_bytes()))
        functions = [tvm.ir.load_json(row["function"]) for row in rows]
        return [
            Task(kernel_hash(function), row["name"], function, row["calls"])
            for row, function in zip(rows, functions, strict=True)
        ]
    except FileNotFoundError as error:
        missing = path.relative_to(artifact)
        raise UserError(f"{artifact}: has no {missing}; compile it again, or give the model") from error
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path}: is damaged ({error}); compile again") from error
