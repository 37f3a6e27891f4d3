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

from gfcompile.codegen.kernels.open_convolution import read_open, write_open
from gfcompile.codegen.program import Program
from gfcompile.codegen.tuned.keys import kernel_hash
from gfcompile.errors import UserError
from gfcompile.graph.open_convolutions import find_open
from gfcompile.step import Step

KERNELS = "kernels.json.gz"  # in an artifact's folder of graphs
_TRAINING = ("train", "train_features")


@dataclass(frozen=True)
class Task:
    """One kernel: `calls` in a training step."""

    kernel: str  # its hash
    name: str
    function: tirx.PrimFunc
    calls: int

    @property
    def is_open(self) -> bool:
        """Whether it stands for a convolution whose algorithm is to be chosen, and not for a kernel of the step."""
        return read_open(self.function) is not None


def step_tasks(train: Step | None, programs: Iterable[Program]) -> list[Task]:
    """Convolutions of the training step whose algorithm is open, where one is given, and the programs' kernels."""
    return [*(list_open(train) if train is not None else []), *list_tasks(programs)]


def list_open(train: Step) -> list[Task]:
    """The step's convolutions that Winograd's filtering can compute, one of each shape."""
    counts = Counter(site.convolution for site in find_open(train))
    return [Task(each.key, each.key, write_open(each), count) for each, count in counts.items()]


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
    return gzip.compress(json.dumps(rows).encode(), compresslevel=6, mtime=0)  # 9 takes five times as long for a tenth


def read_tasks(artifact: Path) -> list[Task]:
    """The kernels that an artifact keeps for tuning."""
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
