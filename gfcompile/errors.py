"""The two families of failure: the user's (one line, no traceback) and ours (names the pass and how to replay it)."""


class UserError(Exception):
    """Bad input. The text says where, what is wrong with the value, and what to do; the CLI prints it alone."""

    exit_code = 2


class ContractError(Exception):
    """A broken invariant inside the compiler: our bug, never the user's."""

    exit_code = 70
