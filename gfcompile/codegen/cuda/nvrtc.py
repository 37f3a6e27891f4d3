"""CUDA C to PTX by NVRTC, called through ctypes: it needs neither a driver nor a GPU."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

from gfcompile.codegen.cuda import packages
from gfcompile.errors import ContractError, UserError

# the first version of PTX that knows an architecture: what NVRTC writes is newer than the drivers of older JetPacks
# can read, though it uses nothing of what is new; ptxas checks that when it assembles the result
_FIRST_PTX = {"sm_75": "6.4", "sm_80": "7.0", "sm_86": "7.1", "sm_87": "7.4", "sm_89": "7.8", "sm_90": "7.8"}
_OLDEST_PTX = "6.4"  # JetPack 4.2 and later; it knows all up to sm_75


def compile_ptx(source: str, arch: str) -> str:
    """The program for `arch` and those after it."""
    library = _library()
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"step.cu", 0, None, None), "create")
    options = [
        f"--gpu-architecture={arch.replace('sm_', 'compute_')}",
        "--std=c++17",
        "--device-as-default-execution-space",
        *(f"--include-path={folder}" for folder in packages.find_headers()),
    ]
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    try:
        if library.nvrtcCompileProgram(program, len(options), arguments):
            said = _text(library, program, "ProgramLog")
            raise ContractError(f"NVRTC refuses the generated kernels: {_first_error(said)}")
        ptx = _text(library, program, "PTX")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    return _for_older_drivers(ptx, _FIRST_PTX.get(arch, _OLDEST_PTX))


def _for_older_drivers(ptx: str, version: str) -> str:
    """The same program under an older version's name; a hint that came with PTX 8.3 is left out."""
    plain = re.sub(r'^\s*\.pragma "used_bytes_mask [^"]*";\n', "", ptx, flags=re.MULTILINE)
    return re.sub(r"^\.version \S+", f".version {version}", plain, count=1, flags=re.MULTILINE)


@cache
def _library() -> Any:
    path = packages.find("libnvrtc.so.12")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise UserError(f"CUDA targets need NVRTC, which does not load ({error}); reinstall gfcompile[cuda]") from error


def _text(library: Any, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
    text = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, text), what)
    return text.value.decode()


def _first_error(log: str) -> str:
    return next((line for line in log.splitlines() if "error" in line), log[:300])


def _check(code: int, what: str) -> None:
    if code:
        raise ContractError(f"NVRTC failed ({what}, code {code})")
