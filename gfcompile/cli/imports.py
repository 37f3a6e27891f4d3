"""torch, tvm and all of the compiler, imported as quickly as it goes: most of a second command's time is that."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

# PyTorch's compiler, which comes with torch.export, looks at them for models that are spread over machines
_FOR_MANY_MACHINES = ("torch.distributed.fsdp", "torch.distributed.tensor")
_IN_PYTHON = ("numpy", "sympy", "networkx")  # of what torch and we import, what needs no large library


def import_compiler() -> None:
    """Import what compiles, for a command that needs it, so that the imports that follow find everything there.

    Python's collector waits meanwhile, never looks at what was imported, since none of it is ever forgotten, and looks
    seldom at the rest: the process is here to compile.
    """
    if "torch" in sys.modules:  # a process that does other things too
        return
    looking = Thread(target=_look_for_names_early)
    looking.start()
    gc.disable()
    try:
        for name in _IN_PYTHON:
            import_module(name)
        looking.join()
        with _without(_FOR_MANY_MACHINES), _without_source_lines():
            import_module("gfcompile.api")
        with _on_one_machine():
            import_module("torch.export._trace")  # as PyTorch does when it exports first
        gc.set_threshold(*import_module("gfcompile.compiler").SELDOM)
    finally:
        gc.enable()
    gc.freeze()


class _Absent:
    """Says of some modules that they are not there, as in a PyTorch that was built without them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.names:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Modules that nothing asks for but in a `try`, and that a model's own code can import afterwards."""
    finder = _Absent(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def _on_one_machine() -> Iterator[None]:
    """PyTorch's partitioner asks whether tensors can be spread over machines, and imports what shards its operators."""
    distributed = import_module("torch.distributed")
    asked = distributed.is_available
    distributed.is_available = lambda: False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        distributed.is_available = asked  # type: ignore[attr-defined]


@contextmanager
def _without_source_lines() -> Iterator[None]:
    """PyTorch notes where each of its operators is defined; Python's `inspect` reads that source, to show a line of it,
    and to find it looks at every module."""
    ask = inspect.getframeinfo
    inspect.getframeinfo = lambda frame, context=0: ask(frame, context=0)
    try:
        yield
    finally:
        inspect.getframeinfo = ask


def _look_for_names_early() -> None:
    """Let TVM's library look for names of C++ functions now, while it is alone.

    It does so once, at its first error, which it raises while it is imported; by then it would read those of PyTorch
    and LLVM, for more than a second. Its errors have the same words; only C++ functions in their tracebacks have no
    names.
    """
    found = find_spec("tvm_ffi")
    if found is None or found.origin is None:
        return
    library = Path(found.origin).parent / "lib" / "libtvm_ffi.so"
    if library.exists():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL).TVMFFIBacktrace(b"", 0, b"", 0)
