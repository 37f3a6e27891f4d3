"""A table of translations: which ATen or gf operator is written how.

A translation is a function `(to, out, *args, **kwargs)` with the operator's own arguments, tensors as `Value`; it
writes ONNX nodes through `to` and returns the name of the result, or a tuple of names for several. `out` says what is
expected: a `Value`, or a tuple with None where nobody reads a result. What depends on the result's type or place alone
(`dtype`, `layout`, `device`, ...) is not passed: `out` has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = str | tuple[str | None, ...]
Translation = Callable[..., Result]
T = TypeVar("T", bound=Translation)


class Table(dict[Any, Translation]):
    """Operators to translations."""

    def writes(self, *targets: Any) -> Callable[[T], T]:
        """The decorator that enters a function for one or more operators."""

        def enter(function: T) -> T:
            self.update(dict.fromkeys(targets, function))
            return function

        return enter
