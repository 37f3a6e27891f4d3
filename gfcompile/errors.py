"""The two families of failure: the user's (one line, no traceback) and ours (names the pass and how to replay it)."""

from gfcompile.runtime.errors import on_one_line


class UserError(Exception):
    """Bad input. The text says where, what is wrong with the value, and what to do; the CLI prints it alone."""

    def __init__(self, text: str) -> None:
        super().__init__(on_one_line(text))


class ContractError(Exception):
    """A broken invariant inside the compiler: our bug, never the user's."""
