"""What to do where something that a test needs is not installed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_for_want(what: str) -> NoReturn:
    """Skip with the sentence; where everything has been installed (`.ci/run`), fail with it."""
    if os.environ.get("GF_REQUIRE_ALL") == "1":
        pytest.fail(what)
    pytest.skip(what)
