"""What an option's text means, and what is said of one that means nothing."""

from __future__ import annotations

import argparse
import math
from typing import Any

from gfcompile.errors import UserError
from gfcompile.settings import FLOAT32_MOST, split_settings


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from error


def patch(text: str) -> tuple[str, int | None]:
    name, _, edge = text.rpartition("=")
    try:
        return name or "*", None if edge == "exact" else int(edge)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not a patch edge; write --r 2 or --r NAME=2") from error


def patches(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--r '{text}': must be patch edges joined by commas, as in 1,2,4,7") from error


def ratio(text: str) -> tuple[str, float | str]:
    name, _, share = text.rpartition("=")
    try:
        return name or "*", text if text == "auto" else float(share)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is no share; write --sparse 0.1 or --sparse NAME=0.1") from error


def shares(text: str) -> tuple[float, ...]:
    try:
        return () if text == "none" else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--sparse '{text}': must be shares joined by commas, as in 0.5,0.25, or none") from error


def batchnorm(text: str) -> tuple[str, str]:
    name, _, mode = text.rpartition("=")
    return name or "*", mode


def betas(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"--betas '{text}': must be two numbers, as in 0.9,0.999") from error


def group_settings(text: str) -> tuple[str, dict[str, Any]]:
    pattern, settings = split_settings("--group", text)
    if not (pattern and settings):
        raise UserError(f"--group '{text}': has no settings; write 'PATTERN:key=value', as in '*.bias:weight_decay=0'")
    return pattern, settings


class number:  # noqa: N801 - reads as a function in the option list
    """A finite number, 0 or more."""

    def __init__(self, option: str) -> None:
        self.option = option

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise UserError(f"{self.option} '{text}': must be a finite number, 0 or more")
        return value


class rate(number):  # noqa: N801
    """A number of 0 or more that the kernels can read."""

    def __call__(self, text: str) -> float:
        value = super().__call__(text)
        if value > FLOAT32_MOST:
            raise UserError(f"{self.option} '{text}': is more than a float32 holds; give 3.4e38 or less")
        return value
