"""The repository's documents taken apart: headings, links, cited paths, command lines, blocks of code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gfcompile"
TOP = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
FOR_BUILDERS = {"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/tour.md"}
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"[\w.<>*-]+(?:/[\w.<>*-]+)*/?")
SOURCE = re.compile(r"[\w-]+\.(?:py|c|h|toml|md)")


@dataclass(frozen=True)
class Block:
    """A block of code: its language, empty if none is said, and the line of its first line."""

    language: str
    body: str
    line: int


@dataclass(frozen=True)
class Document:
    """One Markdown file. `for_builders`: it cites the package's files by their place in the package."""

    path: Path
    for_builders: bool = False

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return FENCE.sub("", self.text)

    @cached_property
    def blocks(self) -> list[Block]:
        fenced = [
            Block(found["language"], found["body"], self._line(found.start())) for found in FENCE.finditer(self.text)
        ]
        indented = [Block("", found[0], self._line(found.start())) for found in INDENTED.finditer(self.prose)]
        return fenced + indented

    @cached_property
    def anchors(self) -> set[str]:
        """What a link may name after #: each heading as GitHub writes it."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    def links(self) -> list[str]:
        """Targets of links and pictures that lie in the repository."""
        return [link for link in LINK.findall(self.prose) if "://" not in link]

    def cited_paths(self) -> list[str]:
        """Paths in backticks that claim to lie in the repository; `<name>` stands for a name of the reader's choice."""
        spans = [span for span in SPAN.findall(self.prose) if PATH.fullmatch(span) and not span.startswith("-")]
        roots = TOP | ROOMS if self.for_builders else TOP
        placed = [span for span in spans if "/" in span and span.split("/")[0] in roots]
        named = [span for span in spans if self.for_builders and SOURCE.fullmatch(span)]
        return placed + named

    def command_lines(self) -> Iterator[list[str]]:
        """Every `gfcompile ...` of its blocks, and those in the text that have arguments, as words."""
        lines = [line for block in self.blocks if block.language != "python" for line in block.body.splitlines()]
        spans = [span for span in SPAN.findall(self.prose) if len(span.split()) > 2]
        for line in [*lines, *spans]:
            commands = [command for command in re.split(r"&&|;", line) if command.split()[:1] == ["gfcompile"]]
            yield from (shlex.split(command, comments=True)[1:] for command in commands)

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1


def find_documents() -> dict[str, Document]:
    """All Markdown that a reader may open, by its path in the repository."""
    paths = sorted(
        [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("tests/**/*.md")]
    )
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return {
        name: Document(path, name in FOR_BUILDERS or name.startswith("docs/decisions/"))
        for name, path in zip(names, paths, strict=True)
    }


def is_there(cited: str, folder: Path) -> bool:
    """Whether a cited path is in the repository, the package, or beside the document.

    Without a suffix it may be a module or a folder; a bare file name may lie anywhere.
    """
    pattern = re.sub(r"<\w+>", "*", cited.rstrip("/"))
    if "/" not in pattern and "." in pattern:
        return (
            any(next(root.rglob(pattern), None) for root in (PACKAGE, ROOT / "tests", ROOT / "docs"))
            or (ROOT / pattern).exists()
        )
    return any(next(root.glob(f"{pattern}{end}"), None) for root in (ROOT, PACKAGE, folder) for end in ("", ".py"))
