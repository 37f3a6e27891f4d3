"""The graph after each pass, numbered: readable text in `train/03_filter.txt`, ONNX in `train/03_filter.onnx`.

Equal graphs give equal files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gfcompile.errors import UserError
from gfcompile.runtime.tensorfile import write_atomically

if TYPE_CHECKING:
    from torch import fx

    from gfcompile.step import Step

DEFAULT_PROGRAM = "train"
MODEL_PROGRAM = "predict"


class Dumps:
    """Observes `compiler.analyse`; `files` maps a name to its content. With a folder, each is written as it comes.

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


def print_graph(step: Step, title: str) -> str:
    """The graph as a Python function, with roles and shapes as trailing comments."""
    lines: list[tuple[str, str]] = [(f"# {title}", "")]
    if step.log:
        lines += [(f"#   {line}", "") for line in _event_lines(step)]
    lines.append(("def step(", ""))
    for node, value in zip(step.placeholders(), step.inputs, strict=True):
        lines.append((f"    {node.name},", f"{value.role} {value.name} {_type_of(node)}"))
    lines.append(("):", ""))
    for node in step.body.graph.nodes:
        if node.op not in ("placeholder", "output"):
            lines.append((f"    {node.name} = {_call(node)}", _type_of(node)))
    lines.append(("    return (", ""))
    for node, value in zip(step.results(), step.outputs, strict=True):
        lines.append((f"        {getattr(node, 'name', node)},", f"{value.role} {value.name}"))
    lines.append(("    )", ""))
    return "\n".join(f"{code}  # {comment}" if comment else code for code, comment in lines) + "\n"


def diff(folder: Path, first: str, second: str) -> str:
    """Unified diff of two dumps, each named by number ("02"), by file, or as program/number."""
    before, after = _find(folder, first), _find(folder, second)
    old, new = (path.read_text(encoding="utf-8").splitlines(keepends=True) for path in (before, after))
    return "".join(difflib.unified_diff(old, new, _label(before), _label(after)))


def _event_lines(step: Step) -> list[str]:
    event = step.log[-1]
    sites = [f"{len(event.sites)} sites" + (": " + ", ".join(event.sites) if event.sites else "")]
    return sites + [f"refused {refusal.layer}: {refusal.reason}" for refusal in event.refusals]


def _call(node: fx.Node) -> str:
    arguments = [_argument(arg) for arg in node.args]
    arguments += [f"{name}={_argument(arg)}" for name, arg in node.kwargs.items()]
    if node.op == "get_attr":
        return f"self.{node.target}"
    return f"{_target(node.target)}({', '.join(arguments)})"


def _target(target: Any) -> str:
    text = str(target)
    if isinstance(target, str) or ("." in text and " " not in text):
        return text.removesuffix(".default")
    return str(getattr(target, "__name__", text))


def _argument(value: Any) -> str:
    if isinstance(value, list | tuple):
        inside = ", ".join(_argument(item) for item in value)
        return f"[{inside}]"
    return str(getattr(value, "name", None) or value) if hasattr(value, "op") else repr(value)


def _type_of(node: fx.Node) -> str:
    value = node.meta.get("val")
    return ", ".join(map(_type_name, value if isinstance(value, list | tuple) else [value]))


def _type_name(value: Any) -> str:
    if not hasattr(value, "dtype"):
        return "-"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


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
