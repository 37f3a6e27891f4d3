"""`Fault`: one deliberate mistake, as data, and how it is put into a tree and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """In `file`, `find` becomes `put`; then `wrong` is true of the program, and one of `tests` should fail.

    `find` occurs exactly once. `tests` are files or node ids, the nearest to the fault first: the first that fails
    ends the run.
    """

    name: str
    file: str
    find: str
    put: str
    wrong: str
    tests: tuple[str, ...]

    def refusal(self, tree: Path) -> str | None:
        """Why it cannot be put into this tree."""
        path = tree / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        count = path.read_text().count(self.find)
        if count != 1:
            return f"{self.file} has its text {count} times"
        return None if self.tests_in(tree) else f"none of {', '.join(self.tests)} exists"

    def tests_in(self, tree: Path) -> list[str]:
        """Those of its tests whose files this tree has: an older commit may lack some."""
        return [test for test in self.tests if (tree / test.partition("::")[0]).exists()]

    def harmed(self, tree: Path) -> str:
        """What the file holds with the fault in it."""
        return (tree / self.file).read_text().replace(self.find, self.put)

    @contextmanager
    def planted(self, tree: Path) -> Iterator[None]:
        """The tree with the fault, for as long as the block runs."""
        path = tree / self.file
        whole = path.read_bytes()
        path.write_text(self.harmed(tree))
        try:
            yield
        finally:
            path.write_bytes(whole)
