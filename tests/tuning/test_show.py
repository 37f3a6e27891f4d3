"""A database in words, to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfcompile.codegen.tuned.database import Database
from gfcompile.codegen.tuned.keys import versions
from gfcompile.codegen.tuned.record import Record
from gfcompile.tuning.show import NOTE, show_text
from tests.tuning.records import TARGET, any_record, trial

BOARD = "cortex-a53 aarch64 +neon lanes 4 registers 32 cores 4 cache 128K in order"


def test_an_empty_database() -> None:
    assert show_text(Database()) == "no trials"


def test_all_that_is_shown() -> None:
    records = [
        trial(),
        trial(failure="wrong result", ratio=None, decisions={"tile": (8, 8)}),
        trial(kernel="b", name="add", template="elementwise", decisions={}, ratio=1.1, spread=0.02, seconds=4.2e-5),
        trial(kernel="c", name="slow", ratio=0.9),
        trial(kernel="c", name="slow", kind="ranked"),
        trial(kernel="d", name="long", seconds=1.5, decisions={"width": 16}),
        trial(target=BOARD, kind="emulated", ratio=1.25, seconds=7.0),
        trial(target=BOARD, kernel="e", name="mixed", ratio=1.5),
        trial(target=BOARD, kernel="e", name="mixed", kind="emulated", ratio=3.0),
        trial(versions="tvm 0.26.0, templates 1"),
    ]
    problems = ["t.jsonl:3: lacks 'kind'; skipped"]
    assert (
        show_text(Database(records=records, problems=problems))
        == f"""\
{BOARD}
kernel  template  trials  failures  times as fast  seconds per run  kind      decisions
------  --------  ------  --------  -------------  ---------------  --------  ----------------------------
conv    conv      1       0         1.25 ± 0.05    -                emulated  tile 4x8, unroll 2, order nk
mixed   conv      2       0         1.50 ± 0.05    1.23 ms          measured  tile 4x8, unroll 2, order nk

{TARGET}
kernel  template     trials  failures  times as fast  seconds per run  kind              decisions
------  -----------  ------  --------  -------------  ---------------  ----------------  ----------------------------
add     elementwise  1       0         1.10 ± 0.02    42.00 µs         measured          as proposed
conv    conv         2       1         2.00 ± 0.05    1.23 ms          measured          tile 4x8, unroll 2, order nk
long    conv         1       0         2.00 ± 0.05    1.50 s           measured          width 16
slow    conv         2       0         -              -                measured, ranked  none was faster

{NOTE}

trials: 9 (measured 6, emulated 2, ranked 1), failed: 1
kernels: 6, measured to be faster than untuned: 4
not used: 1 of tvm 0.26.0, templates 1; this is {versions()}

problems:
  t.jsonl:3: lacks 'kind'; skipped"""
    )


def test_a_time_of_an_emulator_is_never_shown() -> None:
    shown = show_text(Database(records=[trial(kind="emulated", seconds=123.0, reference_seconds=456.0)]))
    assert "123" not in shown.replace(TARGET, "")
    assert "456" not in shown
    assert "emulated" in shown


@pytest.mark.slow
@given(st.lists(any_record(), max_size=4))
def test_any_database_is_shown(records: list[Record]) -> None:
    assert show_text(Database(records=records))
