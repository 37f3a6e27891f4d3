"""Records for tests: one by hand, and any by hypothesis."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.keys import versions
from gfcompile.codegen.tuned.record import KINDS, RANKED, Record

KERNEL, TARGET = "00c0ffee00c0ffee", "x86-64-v3 x86_64 lanes 8 registers 16 cores 4 cache 256K"
FAST = Record(
    kernel=KERNEL,
    name="conv",
    template="conv",
    target=TARGET,
    versions=versions(),
    decisions={"tile": (4, 8), "unroll": 2, "order": "nk"},
    kind="measured",
    seconds=0.00123,
    reference_seconds=0.00246,
    ratio=2.0,
    spread=0.05,
    failure=None,
    machine={"cpu": "one", "khz": 3000000, "temperature": None},
    date="2025-11-03T10:11:12+00:00",
)


def trial(**changes: Any) -> Record:
    """FAST, but for what is said. A ranked one has no times."""
    if changes.get("kind") == RANKED:
        changes = {"seconds": None, "reference_seconds": None, "ratio": None, "spread": None, "score": 1.5, **changes}
    return dataclasses.replace(FAST, **changes)


def fill(path: Path, *records: Record) -> Database:
    database = Database.open(path)
    for record in records:
        database.add(record)
    return database


TEXTS = st.text(max_size=12)
POSITIVE = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OPTIONS = st.integers() | TEXTS | st.lists(st.integers(), max_size=4).map(tuple)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(KINDS))
    times = st.none() if kind == RANKED else st.none() | POSITIVE
    return Record(
        *(draw(TEXTS) for _ in range(4)),
        versions=draw(st.sampled_from([versions(), "tvm 0.1, templates 0"])),
        decisions=draw(st.dictionaries(TEXTS, OPTIONS, max_size=4)),
        kind=kind,
        seconds=draw(times),
        reference_seconds=draw(times),
        ratio=draw(times),
        spread=draw(times),
        failure=draw(st.none() | TEXTS),
        machine=draw(st.dictionaries(TEXTS, VALUES, max_size=3)),
        date=draw(TEXTS),
        score=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
    )
