"""Words for what another's file or code does: a deed that needs trust, damage, an exception in one line."""

from typing import NoReturn

from gfcompile.errors import UserError


class MalformedError(ValueError):
    """A file that is not as its writer writes it; the text says in what, for the message of whoever reads it."""


def refuse_without_trust(path: str, deed: str) -> NoReturn:
    """Refuse a file for what it would do; the user may allow it."""
    raise UserError(f"{path}: {deed}; if you trust the file, add --trust")


def shortened(text: str, most: int = 1000) -> str:
    """A message that quotes a file: a name in it may have any length."""
    return text if len(text) <= most else f"{text[:most]}..."


def one_line(error: BaseException) -> str:
    """The type and the first line of an exception that goes into a message of ours."""
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error, MalformedError):
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
