"""What may be done with a layer: frozen, trained exactly, or filtered; of all its input channels or of drawn ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gfcompile.settings.planning import EXACT, FILTER, FREEZE, Choice
from gfcompile.settings.schema import Request

FROZEN, TRAINED = Choice(FREEZE), Choice(EXACT)


def choices_of(edges: Sequence[int], shares: Sequence[float], can_filter: bool, can_draw: bool) -> list[Choice]:
    """Everything that can be done with a convolution, freezing first."""
    whole = [TRAINED, *(Choice(FILTER, r) for r in edges if can_filter)]
    drawn = [replace(choice, sparse=share) for choice in whole for share in shares if can_draw]
    return [FROZEN, *whole, *drawn]


def as_request(choices: Mapping[str, Choice], request: Request) -> Request:
    """The request that does this and leaves all other layers frozen; what it says of batch norms and the like stays."""
    trained = {layer: choice for layer, choice in choices.items() if choice.trains}
    return replace(
        request,
        layers=None,
        train=tuple(trained),
        exact=False,
        r={"*": None, **{layer: choice.r for layer, choice in trained.items() if choice.do == FILTER}},
        sparse={layer: choice.sparse for layer, choice in trained.items() if choice.sparse is not None} or None,
    )
