"""The benchmarks' results as one JSON file, written after every row, a section redone without touching the others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Record:
    """`sections[name]` has the machine, the keys that were planned, and the rows that are there, by key."""

    def __init__(self, path: Path) -> None:
        self._path = path
        read = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.sections: dict[str, dict[str, Any]] = read.get("sections", {})

    def begin(self, name: str, planned: Sequence[str], about: Row, resume: bool) -> list[str]:
        """The keys that are still to be run. `about` says on what and how; rows of another machine are not kept."""
        old = self.sections.get(name, {})
        keeps = resume and all(_lasting(old.get(key)) == _lasting(value) for key, value in about.items())
        rows = {key: row for key, row in old.get("rows", {}).items() if keeps and "failed_row" not in row}
        merged = [*(key for key in rows if key not in planned), *planned]
        self.sections[name] = (old if keeps else about) | {"planned": merged, "rows": rows}
        return [key for key in planned if key not in rows]

    def add(self, name: str, key: str, row: Row) -> None:
        """Keep a finished row, on disk too."""
        section = self.sections[name]
        rows = section["rows"] | {key: row | {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}}
        section["rows"] = {each: rows[each] for each in section["planned"] if each in rows}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".json.part")
        beside.write_text(as_text({"sections": self.sections}), encoding="utf-8")
        beside.replace(self._path)


def as_text(value: Any) -> str:
    """JSON with a list of numbers or names on one line."""
    text = json.dumps(value, indent=1)
    flat = re.compile(r'\[\s+((?:[-+.\deE]+|"[^"\n]*")(?:,\s+(?:[-+.\deE]+|"[^"\n]*"))*)\s+\]')
    return flat.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


def _lasting(value: Any) -> Any:
    """Without the date: a run that is taken up again later is the same run."""
    return {key: each for key, each in value.items() if key != "date"} if isinstance(value, dict) else value
