"""Fixtures that the tests here share."""

from tests.artifacts import builds

__all__ = ["builds"]
