"""A model out of a file that nobody vouches for runs once in a child process before it runs in this one.

PyTorch's kernels take some numbers of a module on trust (strides, paddings, sizes): a file that makes them up can end
the process, or take all of its memory. Then it is the child that ends.
"""

from __future__ import annotations

import copy
import os
import resource
import signal
from pathlib import Path

import torch
from torch import Tensor

from gfcompile.errors import UserError
from gfcompile.frontend.foreign import refuse_without_trust
from gfcompile.frontend.load import LoadedModel

LONGEST = 120  # seconds of one core for a forward pass
FINE, FAILED, NO_MEMORY = range(3)


def rehearse(loaded: LoadedModel, inputs: tuple[Tensor, ...]) -> None:
    """Refuse a model that ends the process it runs in; one that raises an exception will raise it again."""
    if not loaded.is_foreign:
        return
    child = os.fork()
    if child == 0:
        _run_and_end(loaded, inputs)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        what = f"takes longer than {LONGEST} s" if name in ("SIGXCPU", "SIGKILL") else f"ends PyTorch with {name}"
        refuse_without_trust(loaded.origin, f"{what} when it runs once")
    if os.WEXITSTATUS(status) == NO_MEMORY:
        raise UserError(
            f"{loaded.origin}: wants more memory than this machine has when it runs once; give a smaller --input"
        )


def _run_and_end(loaded: LoadedModel, inputs: tuple[Tensor, ...]) -> None:
    """In the child. One thread: those of the parent's pools are not here."""
    code = FAILED
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # PyTorch has a lot to say about a crash
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        most = _address_space() + os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        torch.set_num_threads(1)
        with torch.no_grad():
            copy.deepcopy(loaded.module)(*inputs)
        code = FINE
    except MemoryError:
        code = NO_MEMORY
    except RuntimeError as error:
        code = NO_MEMORY if "allocate memory" in str(error) else FAILED
    finally:
        os._exit(code)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
