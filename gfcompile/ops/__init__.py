"""The gf operators as torch custom ops: every graph between two passes runs in plain PyTorch.

`channels_last` is False for [N, C, H, W] as PyTorch traces, True for [N, H, W, C] after the layout pass. The `_nhwc`
operators exist only after the layout pass; their weights are packed as `layouts.WeightLayout` says.
"""

import torch

from gfcompile.ops import (
    channels,
    convolution,
    filtered,
    mixing,
    moves,
    patches,
    pooling,
    random,
    resample,
    statistics,
    update,
    winograd,
)

gf = torch.ops.gf
"""The operators by name. Import them from here: the modules above have registered them by then."""

__all__ = [
    "channels",
    "convolution",
    "filtered",
    "gf",
    "mixing",
    "moves",
    "patches",
    "pooling",
    "random",
    "resample",
    "statistics",
    "update",
    "winograd",
]
