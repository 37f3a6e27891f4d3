"""The harnesses of the Python loaders: programs of child.py. Another loader is another `Check`, with a line in CHECKS
and a function in seeds.py.

Atheris, because it is libFuzzer too: inputs are kept for the branches they reach, hangs and crashes of the process are
seen, and both kinds of harness have one runner and one way to replay. (Hypothesis is not led by coverage.)
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial

from tests.fuzz.harness import HERE, Harness
from tests.fuzz.libfuzzer import Engine

ENGINE = "atheris"
RSS_MEGABYTES = 4096  # child.py has the limit that counts: importing torch and tvm alone takes half a gigabyte

LOADERS = "tests.fuzz.loaders"
CHECKS = {  # name -> the check as MODULE:NAME, and the folders of the corpus
    "checkpoint": (f"{LOADERS}.checkpoints:CHECK", ("checkpoint", "tensorfile")),
    "artifact": (f"{LOADERS}.artifacts:CHECK", ("artifact",)),
    "onnx": (f"{LOADERS}.onnx_models:CHECK", ("onnx",)),
    "models": (f"{LOADERS}.models:CHECK", ("models",)),
    "settings": (f"{LOADERS}.settings:CHECK", ("settings",)),
    "graph": (f"{LOADERS}.graphs:CHECK", ("graph",)),
    "batch": (f"{LOADERS}.batches:CHECK", ("batch",)),
}


def harnesses() -> list[Harness]:
    return [
        Harness(f"py-{name}", "Python", engine(check, corpora).run, find_missing, lambda: None)
        for name, (check, corpora) in CHECKS.items()
    ]


def engine(check: str, corpora: tuple[str, ...], **options: int) -> Engine:
    """`check` is MODULE:NAME."""
    return Engine(partial(_command, check), corpora, RSS_MEGABYTES, mutes_stdout=False, **options)


def find_missing() -> str | None:
    if importlib.util.find_spec(ENGINE) is None:
        return f"{ENGINE} is not installed; the Python harnesses need: pip install {ENGINE}"
    return None


def _command(check: str) -> list[str]:
    """It runs in another folder, so it is told where this package is."""
    start = f"import sys; sys.path[:0] = [{str(HERE.parents[1])!r}]; from tests.fuzz.child import main; main()"
    return [sys.executable, "-c", start, check]
