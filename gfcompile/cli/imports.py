"""What makes importing torch and tvm quicker, before either is imported."""

from __future__ import annotations

import ctypes
import sys
from importlib.util import find_spec
from pathlib import Path


def hurry_imports() -> None:
    """Let TVM's library look for names of C++ functions now, while it is alone.

    It does so once, at its first error, which it raises while it is imported; by then it would read those of PyTorch
    and LLVM, for more than a second. Its errors have the same words; only C++ functions in their tracebacks have no
    names.
    """
    found = find_spec("tvm_ffi")
    if "torch" in sys.modules or found is None or found.origin is None:
        return
    library = Path(found.origin).parent / "lib" / "libtvm_ffi.so"
    if library.exists():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL).TVMFFIBacktrace(b"", 0, b"", 0)
