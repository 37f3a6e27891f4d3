"""Operators that draw random numbers while they train."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.operators.harness import layer

S = (40, 50)
IMAGES = (6, 40, 3, 4)


class DropPath(nn.Module):
    """A sample's branch at a time, as torchvision and timm write it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(0.7).div_(0.7)


class Noise(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.kind == "rand":
            return x * torch.rand(x.shape) + torch.rand_like(x)
        if self.kind == "randn":
            return x * torch.randn(x.shape) + torch.randn_like(x)
        if self.kind == "bernoulli":
            return x * torch.bernoulli(x.detach().sigmoid())
        return x * torch.bernoulli(torch.full(x.shape, 0.3)) + x * torch.bernoulli(x.detach(), 0.5)


class DropBlock(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        seeds = (torch.rand(x.shape) < 0.1).to(x.dtype)
        kept = 1 - F.max_pool2d(seeds, 3, 1, 1)
        return x * kept * (kept.numel() / kept.sum())


class AttentionDropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x * 2, x + 1, dropout_p=0.4 if self.training else 0.0)


RANDOMS = [
    layer("dropout", lambda: nn.Dropout(0.3), S),
    layer("dropout_in_place", lambda: nn.Dropout(0.3, inplace=True), S),
    layer("dropout_all", lambda: nn.Dropout(1.0), S),
    layer("dropout_none", lambda: nn.Dropout(0.0), S),
    layer("dropout1d", lambda: nn.Dropout1d(0.3), (6, 50, 4)),
    layer("dropout2d", lambda: nn.Dropout2d(0.3), IMAGES),
    layer("dropout3d", lambda: nn.Dropout3d(0.3), (6, 40, 2, 2, 3)),
    layer("alpha_dropout", lambda: nn.AlphaDropout(0.3), S),
    layer("feature_alpha_dropout", lambda: nn.FeatureAlphaDropout(0.3), IMAGES),
    layer("rrelu", lambda: nn.RReLU(0.1, 0.4), S),
    layer("drop_path", DropPath, (40, 3, 4)),
    layer("drop_block", DropBlock, IMAGES),
    layer("rand", lambda: Noise("rand"), S),
    layer("randn", lambda: Noise("randn"), S),
    layer("bernoulli", lambda: Noise("bernoulli"), S),
    layer("bernoulli_p", lambda: Noise("bernoulli_p"), S),
    layer("attention_dropout", AttentionDropout, (2, 3, 8, 6)),
    layer("dropout_of_image", lambda: nn.Dropout(0.3), (2, 6, 7, 9), is_image=True),
    layer("dropout2d_of_image", lambda: nn.Dropout2d(0.3), (2, 6, 7, 9), is_image=True),
]
