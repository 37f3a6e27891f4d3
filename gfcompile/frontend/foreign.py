"""Words for what another's file or code does: a deed that needs trust, an exception in one line."""

from typing import NoReturn

from gfcompile.errors import UserError


def refuse_without_trust(path: str, deed: str) -> NoReturn:
    """Refuse a file for what it would do; the user may allow it."""
    raise UserError(f"{path}: {deed}; if you trust the file, add --trust")


def one_line(error: BaseException) -> str:
    """The type and the first line of an exception that goes into a message of ours."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
