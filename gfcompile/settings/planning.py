"""The settings of measuring and planning, and what a plan says of one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gfcompile.settings import checks, readers
from gfcompile.settings.fields import Form, Group, setting
from gfcompile.settings.schema import Losses, Machine, Training, Tuned, Which
from gfcompile.settings.text import read_bytes, read_count

LEAST_COSINE = 0.7  # as much signal as noise: of two such steps one is wasted
FREEZE, EXACT, FILTER = "freeze", "exact", "filter"


@dataclass(frozen=True, kw_only=True)
class Measured(Group):
    """What is measured of each layer."""

    r: Sequence[int] = setting(
        (1, 2, 4, 7), "patch edges to try; default: 1,2,4,7", "R,R,...", Form.LISTED, readers.edges, checks.check_edge
    )
    cosine: float = setting(
        LEAST_COSINE,
        "a layer bears r if the cosine of its filtered with its exact weight gradient is C or more; default: 0.7",
        "C",
        read=readers.amount,
        check=checks.check_cosine,
    )


@dataclass(frozen=True, kw_only=True)
class Measuring(Measured, Losses, Which):
    """What `quality` is told."""


@dataclass(frozen=True, kw_only=True)
class Budget(Group):
    """A budget, and what may be done within it."""

    memory: int | str | None = setting(
        None,
        "the most that the step's arena may take, as in 256KB or 2MB",
        "BYTES",
        check=checks.readable(read_bytes),
    )
    step_flops: float | str | None = setting(
        None,
        "the most that the convolutions of a step may count, as in 250M or 1.5G",
        "N",
        check=checks.readable(read_count),
    )
    r: Sequence[int] = setting(
        (2, 4, 7),
        "patch edges to choose from; default: 2,4,7",
        "R,R,...",
        Form.LISTED,
        readers.edges,
        checks.check_edge,
    )
    sparse: Sequence[float] = setting(
        (0.25,),
        "shares of input channels to choose from, beside all of them; none: no such updates; default: 0.25",
        "S,S,...",
        Form.LISTED,
        readers.shares,
        checks.check_part,
    )


@dataclass(frozen=True, kw_only=True)
class Planning(Tuned, Machine, Training, Which, Budget):
    """What `plan` is told."""


@dataclass(frozen=True)
class Choice(Group):
    """A layer's line in plan.toml: what is done with it."""

    do: str = setting(
        FREEZE,
        "freeze: not trained; exact: trained with exact gradients; filter: with gradients averaged over patches",
        "WAY",
        check=checks.one_of(FREEZE, EXACT, FILTER),
    )
    r: int | None = setting(
        None, "of a filtered layer: the patches' edge in output pixels, as in r = 2", "R", check=checks.check_plan_edge
    )
    sparse: float | None = setting(
        None,
        "of a trained convolution: the share of its input channels that a step draws and updates, as in sparse = 0.25",
        "SHARE",
        check=checks.check_plan_share,
    )

    def __str__(self) -> str:
        way = f"r={self.r}" if self.do == FILTER else self.do
        return way if self.sparse is None else f"{way} sparse {self.sparse:g}"

    @property
    def trains(self) -> bool:
        """Whether anything of the layer is updated."""
        return self.do != FREEZE
