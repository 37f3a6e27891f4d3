"""The one error of the shipped runtime."""


class StepError(ValueError):
    """Bad input, a damaged artifact or checkpoint. One line: where, what is wrong, what to do."""
