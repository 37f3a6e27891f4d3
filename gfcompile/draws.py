"""Which input channels of a convolution a sparse update may draw together (METHOD section 5).

Equally many in every group, so that the work stays a grouped convolution. Where fewer channels are wanted than there
are groups, whole groups are drawn instead: a depthwise layer is the case of one channel a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gfcompile.geometry import ConvGeometry

STRATEGIES = ("step", "epoch", "fixed", "norm")


@dataclass(frozen=True)
class Draw:
    """`count` of a convolution's input channels; fewer than there are groups are whole groups."""

    in_channels: int
    out_channels: int
    groups: int
    count: int

    @classmethod
    def of(cls, weight: Sequence[int], groups: int, count: int) -> Draw:
        """For a weight [Co, Ci/groups, ...]."""
        return cls(weight[1] * groups, weight[0], groups, count)

    @property
    def group_inputs(self) -> int:
        return self.in_channels // self.groups

    @property
    def group_outputs(self) -> int:
        return self.out_channels // self.groups

    @property
    def takes_groups(self) -> bool:
        """Whole groups are drawn, with their output channels."""
        return self.count < self.groups

    @property
    def sets(self) -> int:
        """How many drawings there are, of `chosen` out of `candidates` each; a candidate is `width` channels."""
        return 1 if self.takes_groups else self.groups

    @property
    def candidates(self) -> int:
        return self.groups if self.takes_groups else self.group_inputs

    @property
    def width(self) -> int:
        return self.group_inputs if self.takes_groups else 1

    @property
    def chosen(self) -> int:
        return self.count // self.width // self.sets

    @property
    def drawn_groups(self) -> int:
        """Groups of the convolution that the drawn channels make up."""
        return self.chosen if self.takes_groups else self.groups

    def drawn_shape(self, weight: Sequence[int]) -> list[int]:
        """The shape of the weights that the drawn channels touch."""
        if self.takes_groups:
            return [self.chosen * self.group_outputs, *weight[1:]]
        return [weight[0], self.chosen, *weight[2:]]


def drawn_channels(geometry: ConvGeometry, ratio: float) -> int | None:
    """How many input channels a ratio is: the nearest number that can be drawn, one at least; None for all of them."""
    wanted, inputs = ratio * geometry.in_channels, geometry.in_channels // geometry.groups
    each = max(1, _nearest(wanted / geometry.groups))
    whole = inputs * max(1, _nearest(wanted / inputs))
    count = whole if wanted < geometry.groups and whole < geometry.groups else each * geometry.groups
    return None if count >= geometry.in_channels else count


def _nearest(number: float) -> int:
    """A half counts as one."""
    return int(number + 0.5)
