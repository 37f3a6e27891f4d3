"""Where words go: progress to stderr, results to stdout."""

from __future__ import annotations

import re
import sys
import time
from typing import TextIO

from gfcompile.interrupts import raise_noted

ERASE_LINE = "\r\x1b[K"
WIDTH = 100


class Screen:
    """Progress is one line rewritten on a terminal, and elsewhere one line per stage."""

    def __init__(self, quiet: bool, json: bool) -> None:
        self.quiet, self.json = quiet, json
        self.rewrites = sys.stderr.isatty()
        self.start = time.monotonic()
        self.stage = ""

    def progress(self, text: str, transient: bool = False) -> None:
        """`transient` is for stages of a second or two: shown on a terminal only. None begins after an interrupt."""
        raise_noted()
        seconds = f"[{time.monotonic() - self.start:4.0f} s] "
        if self.quiet:
            return
        if self.rewrites:
            sys.stderr.write(ERASE_LINE + (seconds + text)[:WIDTH])
        elif not transient:
            stage = re.split(r"\s*\d", text)[0]  # "compiling kernel 3/90" once, not 90 times
            if stage != self.stage:
                self.stage = stage
                sys.stderr.write(f"{seconds}{stage}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line of progress."""
        if self.rewrites and not self.quiet:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """A line for people: with --json it stays out of what a program reads."""
        self.clear()
        if not self.quiet:
            write(text, sys.stderr if self.json else sys.stdout)

    def result(self, text: str) -> None:
        """Write what the command was asked for to standard output."""
        self.clear()
        write(text, sys.stdout)


def complain(text: str, word: str = "error: ") -> None:
    """The one line that a user sees when something is wrong."""
    line = " ".join(text.split())
    write(f"{ERASE_LINE if sys.stderr.isatty() else ''}gfcompile: {word}{line}", sys.stderr)


def write(text: str, stream: TextIO) -> None:
    """A line, at once."""
    stream.write(text + "\n")
    stream.flush()
