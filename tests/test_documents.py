"""Documents tell the truth about the repository: links, paths, command lines, code, and how long a page is."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from gfcompile.cli import COMMANDS, parsers
from gfcompile.errors import UserError
from tests.documents import ROOT, Document, find_documents, is_there
from tests.lean import lean

DOCUMENTS = find_documents()
DECISIONS = {name: each for name, each in DOCUMENTS.items() if re.match(r"docs/decisions/\d", name)}
HISTORY = {"CHANGELOG.md"}  # it names what once was
MOST_WORDS = 900  # ARCHITECTURE is read in one sitting, or not at all

every_document = pytest.mark.parametrize("name", DOCUMENTS)
every_present_document = pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() - HISTORY))


def parse(words: list[str]) -> None:
    """As `gfcompile` would, up to where work begins."""
    if words[0] in COMMANDS:
        COMMANDS[words[0]][0]().parse_args(words[1:])
    elif words != ["--help"]:
        parsers.compile_parser().parse_args(words)


def made(path: Path, text: str) -> Document:
    path.write_text(text, encoding="utf-8")
    return Document(path)


# ---- what documents point at


@every_document
def test_links_lead_somewhere(name: str) -> None:
    for link in DOCUMENTS[name].links():
        path, _, anchor = link.partition("#")
        target = (DOCUMENTS[name].path.parent / path).resolve() if path else DOCUMENTS[name].path
        assert target.exists(), link
        assert not anchor or anchor in Document(target).anchors, link


@every_present_document
def test_cited_paths_exist(name: str) -> None:
    document = DOCUMENTS[name]
    missing = [cited for cited in document.cited_paths() if not is_there(cited, document.path.parent)]
    assert not missing


@every_present_document
def test_cited_make_targets_and_modules_exist(name: str) -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = DOCUMENTS[name].text
    wanted = {word for line in re.findall(r"(?:`|^ {4})make ([a-z -]+)", text, re.MULTILINE) for word in line.split()}
    assert wanted <= rules
    modules = set(re.findall(r"python -m ((?:benchmarks|tests|gfcompile)[\w.]*)", text))
    assert not {module for module in modules if find_spec(module) is None}


@every_present_document
def test_command_lines_parse(name: str) -> None:
    for words in DOCUMENTS[name].command_lines():
        parse(words)


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    """Each of the above, on a document that lies."""
    text = (
        "# A *title*, here\n[a](nowhere.md) [b](#a-title-here) `gfcompile/nowhere.py` `tests/oracles.py`\n\n"
        "    gfcompile model.pt --no-such-option 3   # a remark\n    gfcompile diff DIR 03 04 && gfcompile passes\n\n"
        "and `gfcompile check model.pt --layers 5`, `gfcompile check`\n"
    )
    document = made(tmp_path / "lies.md", text)
    assert document.links() == ["nowhere.md", "#a-title-here"]
    assert document.anchors == {"a-title-here"}
    assert [is_there(path, tmp_path) for path in document.cited_paths()] == [False, True]
    wrong, *right = document.command_lines()
    assert right == [["diff", "DIR", "03", "04"], ["passes"], ["check", "model.pt", "--layers", "5"]]
    for words in right:
        parse(words)
    with pytest.raises(UserError, match="unrecognized arguments: --no-such-option 3"):
        parse(wrong)


# ---- the shape of some pages


def test_architecture_is_short() -> None:
    assert len(DOCUMENTS["ARCHITECTURE.md"].text.split()) <= MOST_WORDS


def test_every_decision_is_in_the_index() -> None:
    index = DOCUMENTS["docs/decisions/README.md"].text
    lines = []
    for number, (name, decision) in enumerate(DECISIONS.items(), 1):
        title = decision.text.partition("\n")[0]
        assert title.startswith(f"# {number:03}. "), f"{name}: numbers have no gaps, and the title begins with its own"
        lines.append(f"* [{number:03}]({Path(name).name}) {title.partition('. ')[2]}")
    assert re.findall(r"^\*.*$", index, re.MULTILINE) == lines


@pytest.mark.parametrize("name", sorted(DECISIONS))
def test_a_decision_says_what_and_why(name: str) -> None:
    text = DECISIONS[name].text
    assert "**Decided.** " in text
    assert "**Why.** " in text or "**Rejected.** " in text


# ---- code in documents runs


def blocks_of(name: str) -> str:
    """All its Python, each line where it stands in the document, so that a traceback names the document's line."""
    source = ""
    for block in DOCUMENTS[name].blocks:
        if block.language == "python":
            source += "\n" * (block.line - source.count("\n")) + block.body
    return source


def run(name: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(blocks_of(name), DOCUMENTS[name].path, "exec"), names)
    return names


WITH_PYTHON = {name for name, each in DOCUMENTS.items() if any(block.language == "python" for block in each.blocks)}


@pytest.mark.parametrize("name", sorted(WITH_PYTHON - {"README.md"}))
def test_python_runs(name: str) -> None:
    run(name, {})


@pytest.mark.slow
def test_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small network for `model`, and few images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    torch.manual_seed(0)
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 5, (16,))
    names = {"model": small_network(), "x": images[:8], "y": labels[:8], "numpy": numpy}
    try:
        with lean():
            found = run("README.md", {**names, "images": images, "labels": labels})
    finally:
        sys.modules.pop("resnet18_step", None)
    assert 0 < found["loss"] < 10
    assert found["logits"].shape == (8, 5)
    assert set(found["grads"]) < set(found["model"].state_dict())


def small_network() -> nn.Module:
    """A frozen stem that is worth caching, and the four convolutions that the README trains."""
    stem = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4)]
    tail = [part for _ in range(4) for part in (nn.Conv2d(32, 32, 1), nn.ReLU())]
    return nn.Sequential(*stem, *tail, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)).eval()
