"""Fixtures for tests that import modules they have written themselves."""

import sys

import pytest


@pytest.fixture
def forget_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("gf_test_", "gfcompile_import_")):
            del sys.modules[name]
