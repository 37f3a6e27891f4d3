"""The graphs of an artifact, or of a folder that --dump wrote: found by program and number, and as ONNX on demand.

The text of a graph is all that its ONNX form needs: the file is the same, byte for byte, as the one --dump writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gfcompile.errors import UserError
from gfcompile.progress import Progress, silent
from gfcompile.runtime.tensorfile import write_atomically

if TYPE_CHECKING:
    from gfcompile.step import Step

DEFAULT_PROGRAM = "train"
PROGRAMS = (DEFAULT_PROGRAM, "gradients", "predict", "features", "train_features")  # in the order of a list
FUNCTION = "def step("  # before it, a text has its title and what the pass did
_NUMBERED = re.compile(r"(\d+)_(.+)\.txt")


@dataclass(frozen=True)
class Graph:
    """One text: of `program`, after the pass `name`, the `number`-th ("03")."""

    program: str
    number: str
    name: str
    path: Path

    def count_calls(self) -> int:
        """The operators that it calls: a line each, between the inputs and the results."""
        return len(re.findall(r"^    \w+ = ", read_text(self.path), re.MULTILINE))


def list_graphs(folder: Path) -> list[Graph]:
    """All of them, program by program; the folder of one program will do too."""
    root = _root(folder)
    names = {path.name for path in root.iterdir() if path.is_dir()}
    ordered = [*(name for name in PROGRAMS if name in names), *sorted(names.difference(PROGRAMS))]
    found = _numbered(root) or [graph for name in ordered for graph in _numbered(root / name)]
    if not found:
        raise UserError(f"{folder}: holds no graphs; give the folder that --dump wrote, or an artifact")
    return found


def find_graph(folder: Path, name: str) -> Graph:
    """The one that is named by number ("02", of the train program), by file, or as program/number."""
    root = _root(folder)
    program, _, which = name.rpartition("/")
    if not program and not _numbered(root):
        program = DEFAULT_PROGRAM
    graphs = _numbered(root / program)
    for graph in graphs:
        same_number = which.isdecimal() and graph.number.lstrip("0") == which.lstrip("0")
        if same_number or which in (graph.path.name, graph.path.stem):
            return graph
    known = ", ".join(graph.path.stem for graph in graphs) or "none"
    raise UserError(f"{root / program}: no dump '{which}'; there are: {known}")


def choose_graphs(folder: Path, names: Sequence[str]) -> list[Graph]:
    """Those that are named, each once, as `find_graph` takes names; without names, all."""
    return list(dict.fromkeys(find_graph(folder, name) for name in names)) if names else list_graphs(folder)


def write_onnx(graphs: Sequence[Graph], out: Path | None = None, progress: Progress = silent) -> list[Path]:
    """Each beside its text, or as PROGRAM/NUMBER_NAME.onnx in `out`; returns the files in the same order."""
    translator, written = _Translator(), []
    for count, graph in enumerate(graphs, 1):
        progress(f"writing graph {count} of {len(graphs)}: {graph.program}/{graph.path.stem}")
        path = graph.path.with_suffix(".onnx")
        path = path if out is None else out / graph.program / path.name
        content = translator.translate(graph.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [content])
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror}); give another folder with --out") from error
        written.append(path)
    return written


def read_text(path: Path) -> str:
    """A graph's text; errors say what to give instead."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a .txt file that --dump wrote") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is no text; give a .txt file that --dump wrote") from error


class _Translator:
    """Text to ONNX. A pass that changed nothing left a text with a new title only, which is not read again."""

    def __init__(self) -> None:
        from gfcompile.graph.text_shapes import Shapes  # loads torch, which a list does without

        self.shapes = Shapes()
        self.steps: dict[str, Step] = {}  # by all of the text but its title

    def translate(self, path: Path) -> bytes:
        from gfcompile.export.model import write_graph
        from gfcompile.graph.text_reader import parse_graph

        text = read_text(path)
        title = text.partition("\n")[0].removeprefix("# ")
        function = text[max(text.find(FUNCTION), 0) :]
        if function not in self.steps:
            self.steps[function] = parse_graph(text, where=str(path), shapes=self.shapes, draw=False)
        try:
            return bytes(write_graph(self.steps[function], title).SerializeToString())
        except Exception as error:  # a graph by hand may be anything that PyTorch takes
            raise UserError(
                f"{path}: has no ONNX form ({type(error).__name__}: {error}); give a graph that the compiler wrote"
            ) from error


def _root(folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; give the one that --dump wrote, or an artifact")
    return folder / "graphs" if (folder / "graphs").is_dir() else folder


def _numbered(folder: Path) -> list[Graph]:
    found = []
    for path in sorted(folder.glob("*.txt")):
        match = _NUMBERED.fullmatch(path.name)
        if match is not None:
            found.append(Graph(path.absolute().parent.name, match[1], match[2], path))
    return found
