"""Which input channels of a convolution a sparse update may draw together (docs/method.md, section 5).

Equally many in every group, so that the work stays a grouped convolution. Where fewer channels are wanted than there
are groups, whole groups are drawn instead: a depthwise layer is the case of one channel per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gfcompile.geometry.convolution import ConvGeometry


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

    @classmethod
    def of_layer(cls, geometry: ConvGeometry, count: int) -> Draw:
        """For a layer's geometry."""
        return cls(geometry.in_channels, geometry.out_channels, geometry.groups, count)

    @property
    def group_inputs(self) -> int:
        """Input channels of one group."""
        return self.in_channels // self.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of one group."""
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
        """What one set is drawn from: groups, or the channels of a group."""
        return self.groups if self.takes_groups else self.group_inputs

    @property
    def width(self) -> int:
        """Channels that come with one candidate."""
        return self.group_inputs if self.takes_groups else 1

    @property
    def chosen(self) -> int:
        """Candidates drawn per set."""
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

    def spread(self) -> list[int]:
        """A choice as good as any: candidates at equal distances."""
        return self._channels([[i * self.candidates // self.chosen for i in range(self.chosen)]] * self.sets)

    def largest(self, weight: np.ndarray) -> list[int]:
        """The candidates whose weights in [Co, Ci/groups, ...] have the largest L2 norm; of equal ones, the first."""
        by_group = weight.reshape(self.groups, self.group_outputs, self.group_inputs, -1).astype(np.float64)
        squares = (by_group**2).sum((1, 3)).reshape(self.sets, self.candidates, self.width).sum(2)
        order = np.argsort(-squares, axis=1, kind="stable")[:, : self.chosen]
        return self._channels(np.sort(order, axis=1).tolist())

    def _channels(self, chosen: Sequence[Sequence[int]]) -> list[int]:
        """Input channels from candidates by set."""
        channels: list[int] = []
        for number, candidates in enumerate(chosen):
            for candidate in candidates:
                first = (number * self.candidates + candidate) * self.width
                channels += range(first, first + self.width)
        return channels


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
