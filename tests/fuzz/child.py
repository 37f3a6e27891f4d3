"""A Python harness as a program that takes libFuzzer's options:

    python -m tests.fuzz.child MODULE:NAME [options] [corpus ...]

MODULE.NAME is a `Check`. Atheris watches which branches of gfcompile an input takes, as clang's instrumentation
does in C, and libFuzzer inside it sees hangs and crashes of the process. More than a gigabyte of memory on top of what
the imports took is a MemoryError, which is no refusal either.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import sys
import traceback
import warnings
from pathlib import Path

import atheris

MOST_BYTES = 1 << 30
STRUCTURED = 0.6  # of all changes; the rest are libFuzzer's own, with its dictionary and what it saw compared


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    module, _, name = sys.argv.pop(1).partition(":")
    with atheris.instrument_imports(include=["gfcompile"]):
        check = getattr(importlib.import_module(module), name)
        from tests.fuzz.check import refused
        from tests.fuzz.mutate import change_several
    warnings.simplefilter("ignore")

    def run(data: bytes) -> None:
        try:
            refused(check.run, data)
        except BaseException:  # noqa: BLE001 - a finding, whatever it is; Python's own way out may lose the input
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os.abort()

    def change(data: bytes, most: int, seed: int) -> bytes:
        drawn = random.Random(seed)
        if drawn.random() > STRUCTURED:
            return atheris.Mutate(data, most)
        try:
            return change_several(check.mutate, data, drawn)[:most]
        except Exception:  # noqa: BLE001 - what takes a damaged file apart may raise anything, and is not what is tested
            return atheris.Mutate(data, most)

    atheris.Setup(sys.argv, run, custom_mutator=change)
    limit_memory()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
