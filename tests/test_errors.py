"""Errors are one line that can be printed, whatever went into them."""

from __future__ import annotations

import pytest

from gfcompile.errors import UserError
from gfcompile.runtime.errors import StepError


@pytest.mark.parametrize("error", [UserError, StepError])
def test_what_a_file_calls_its_tensors_stays_in_the_line(error: type[Exception]) -> None:
    named = "tensor 'a\nb\r\x1b[2J\x9b\u202e\u2028\ud800' of 'net.onnx'"
    assert str(error(named)) == "tensor 'a b ?[2J?? ?' of 'net.onnx'"
    assert str(error("größe: '☃ 😀' is wrong")) == "größe: '☃ 😀' is wrong"
