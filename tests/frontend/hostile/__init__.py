"""Model files that try to run something, as an attacker would write them.

Each writes one file into a folder. What it wants to do leaves a trace: the file `ran` in that folder, or the name
`gf_ran` among Python's builtins. `python -m tests.frontend.hostile FOLDER` writes them all and lists them.
"""

from __future__ import annotations

from pathlib import Path

from tests.frontend.hostile.pickles import write_pickles
from tests.frontend.hostile.programs import write_programs
from tests.frontend.hostile.traces import compile_library


def write_all(folder: Path) -> list[Path]:
    """One file each; the library `ran.so` beside them leaves the trace when it is loaded."""
    compile_library(folder)
    write_pickles(folder)
    write_programs(folder)
    return sorted(path for path in folder.iterdir() if path.suffix in (".pt", ".pt2"))
