"""A child process that goes wrong, in place of the one that compiles: the test's own module has no name there."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

from tests.fuzz.runner import Result


def go_wrong(seeds: list[int], sender: Connection) -> None:
    """Ends at seed 2, and does not end at seed 4."""
    for seed in seeds:
        if seed == 2:
            os._exit(3)
        if seed == 4:
            time.sleep(600)
        sender.send(Result(seed))
