"""The graph after each pass, numbered: readable text in `train/03_filter.txt`, ONNX in `train/03_filter.onnx`.

Equal graphs give equal files.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.errors import UserError
from gfcompile.export.graphs import find_graph, read_text
from gfcompile.runtime.tensorfile import write_atomically

if TYPE_CHECKING:
    from gfcompile.step import Step

MODEL_PROGRAM = "predict"


class Dumps:
    """Observes `stages.rewrite`; `files` maps a name to its text, for the artifact. With a folder, each is written
    there as it comes, with its ONNX beside it; an artifact has that on demand (`export.graphs`), as it takes seconds.

    Given the names of the model's `state_dict`, `model` becomes the prediction program as traced: an ONNX model that
    waits for these tensors (`export.skeleton`).
    """

    def __init__(self, folder: Path | None = None, state_dict: Collection[str] | None = None) -> None:
        from gfcompile.graph.text import Printer  # loads torch, which `diff` does without

        self.folder, self.state_dict = folder, state_dict
        self.files: dict[str, bytes] = {}
        self.model: bytes | None = None
        self._printer = Printer()

    def observe(self, program: str, index: int, name: str, step: Step) -> None:
        """To be passed as `analyse(observe=...)`."""
        title, stem = f"{program} program, {index:02}: {name}", f"{program}/{index:02}_{name}"
        self.files[f"{stem}.txt"] = self._printer.print(step, title).encode()
        if self.folder is not None:
            from gfcompile.export.model import write_graph

            _write(self.folder / f"{stem}.txt", self.files[f"{stem}.txt"])
            _write(self.folder / f"{stem}.onnx", write_graph(step, title).SerializeToString())
        if (program, index) == (MODEL_PROGRAM, 0) and self.state_dict is not None:
            from gfcompile.export.skeleton import write_skeleton

            self.model = write_skeleton(step, self.state_dict)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content])
    except OSError as error:
        raise UserError(f"--dump {path}: cannot be written ({error.strerror}); choose another folder") from error


def diff(folder: Path, first: str, second: str) -> str:
    """Unified diff of two dumps, each named by number ("02"), by file, or as program/number."""
    before, after = find_graph(folder, first).path, find_graph(folder, second).path
    old, new = (read_text(path).splitlines(keepends=True) for path in (before, after))
    return "".join(difflib.unified_diff(old, new, _label(before), _label(after)))


def _label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
