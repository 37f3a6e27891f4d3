"""The one error of the shipped runtime."""

import unicodedata


def on_one_line(text: str) -> str:
    """The text without line breaks and control characters, whatever names a file brought along: it goes to a terminal,
    where they would move the cursor, or could not be written at all."""
    if text.isprintable():
        return text
    return "".join(letter if _is_plain(letter) else " " if letter.isspace() else "?" for letter in text)


def _is_plain(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] != "C" and category not in ("Zl", "Zp")


class StepError(ValueError):
    """Bad input, a damaged artifact or checkpoint. One line: where, what is wrong, what to do."""

    def __init__(self, text: str) -> None:
        super().__init__(on_one_line(text))
