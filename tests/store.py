"""What several tests need and is dear to make, compiled artifacts above all: made once for all workers of a test run.

Nobody may write into what it gives: copy it first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


class Store:
    """A folder that all workers share. A lock holds the others back while one of them makes what they want as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def get(self, name: str, make: Callable[[Path], object]) -> Path:
        """The file or folder of this name; `make` writes it if nobody has. What it left after a failure is removed."""
        place = self.folder / name
        with self.alone(name):
            if not place.exists():
                part = self.folder / f"part_{name}"
                shutil.rmtree(part, ignore_errors=True)
                make(part)
                part.rename(place)
        return place

    def compiled(self, model: nn.Module, example: Tensor, out: str, *, full: bool = False, **options: Any) -> Path:
        """The artifact called `out` of this model: one for the same weights, example and options under the same name.

        Lean (tests/lean.py) unless `full`. An option whose words do not tell it from another needs a name of its own.
        """
        import gfcompile  # here, as every test loads this file
        from tests.lean import lean

        def make(folder: Path) -> None:
            folder.mkdir()
            with contextlib.nullcontext() if full else lean():
                gfcompile.build(model, example, out=folder / out, **options)

        words = f"{type(model).__module__} {model} {tuple(example.shape)} {full} {sorted(options.items())}"
        digest = hashlib.sha256(words.encode())
        for name, tensor in model.state_dict().items():
            digest.update(name.encode() + tensor.detach().numpy().tobytes())
        return self.get(f"{out}_{digest.hexdigest()[:16]}", make) / out

    @contextlib.contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """No other process does what has this name."""
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
