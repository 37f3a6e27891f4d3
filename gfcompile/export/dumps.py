"""The graph after each pass, numbered: readable text in `train/03_filter.txt`, ONNX in `train/03_filter.onnx`.

Equal graphs give equal files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.errors import UserError
from gfcompile.runtime.tensorfile import write_atomically

if TYPE_CHECKING:
    from gfcompile.step import Step

DEFAULT_PROGRAM = "train"
MODEL_PROGRAM = "predict"


class Dumps:
    """Observes `stages.rewrite`; `files` maps a name to its content. With a folder, each is written as it comes.

    Given the names of the model's `state_dict`, `model` becomes the prediction program as traced: an ONNX model that
    waits for these tensors (`export.skeleton`).
    """

    def __init__(self, folder: Path | None = None, state_dict: Collection[str] | None = None) -> None:
        self.folder, self.state_dict = folder, state_dict
        self.files: dict[str, bytes] = {}
        self.model: bytes | None = None

    def observe(self, program: str, index: int, name: str, step: Step) -> None:
        """To be passed as `analyse(observe=...)`."""
        from gfcompile.export import write_graph, write_skeleton  # loads torch, which `diff` does without
        from gfcompile.graph.text import print_graph

        title = f"{program} program, {index:02}: {name}"
        self._add(f"{program}/{index:02}_{name}.txt", print_graph(step, title).encode())
        self._add(f"{program}/{index:02}_{name}.onnx", write_graph(step, title).SerializeToString())
        if (program, index) == (MODEL_PROGRAM, 0) and self.state_dict is not None:
            self.model = write_skeleton(step, self.state_dict)

    def _add(self, name: str, content: bytes) -> None:
        self.files[name] = content
        if self.folder is not None:
            _write(self.folder / name, content)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [content])
    except OSError as error:
        raise UserError(f"--dump {path}: cannot be written ({error.strerror}); choose another folder") from error


def diff(folder: Path, first: str, second: str) -> str:
    """Unified diff of two dumps, each named by number ("02"), by file, or as program/number."""
    before, after = _find(folder, first), _find(folder, second)
    old, new = (path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (before, after))
    return "".join(difflib.unified_diff(old, new, _label(before), _label(after)))


def _find(folder: Path, name: str) -> Path:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the one that --dump wrote, or an artifact")
    root = folder / "graphs" if (folder / "graphs").is_dir() else folder
    program, _, which = name.rpartition("/")
    if not program and not any(root.glob("*.txt")):
        program = DEFAULT_PROGRAM
    number = re.match(r"\d+", which)
    files = sorted((root / program).glob("*.txt"))
    for path in files:
        same_number = number is not None and which == number[0] and int(path.name.split("_")[0]) == int(which)
        if which in (path.name, path.stem) or same_number:
            return path
    known = ", ".join(path.stem for path in files) or "none"
    raise UserError(f"{root / program}: no dump '{which}'; there are: {known}")


def _label(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
