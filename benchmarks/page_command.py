"""The command line of a page that is made from a record."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def run(about: str | None, render: Callable[[Path], None], markdown: str) -> None:
    """Render the page in the folder that --out names."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the JSON and the page")
    arguments = parser.parse_args()
    render(arguments.out)
    print(f"{arguments.out / markdown} is written")
