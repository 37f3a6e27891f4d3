"""ConvNets after the transformers: layer norms, layer scale, large and gated kernels, standardised weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define
from tests.models.definitions.mobile import StochasticDepth


class Permute(nn.Module):
    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of an NCHW map, through a channels-last view."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim, bias=True),
            Permute([0, 2, 3, 1]),
            nn.LayerNorm(dim, eps=1e-6),
            nn.Linear(dim, 4 * dim),
            nn.GELU(),
            nn.Linear(4 * dim, dim),
            Permute([0, 3, 1, 2]),
        )
        self.layer_scale = nn.Parameter(torch.rand(dim, 1, 1) + 0.5)
        self.stochastic_depth = StochasticDepth(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.stochastic_depth(self.layer_scale * self.block(x))


class ConvNeXt(nn.Module):
    """ConvNeXt of torchvision: patch stem, channels-last linear layers between permutes, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 12, kernel_size=4, stride=4), LayerNorm2d(12, eps=1e-6)),
            ConvNeXtBlock(12),
            ConvNeXtBlock(12),
            nn.Sequential(LayerNorm2d(12, eps=1e-6), nn.Conv2d(12, 20, kernel_size=2, stride=2)),
            ConvNeXtBlock(20),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(20, eps=1e-6), nn.Flatten(1), nn.Linear(20, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))


class GlobalResponseNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(dim) * 0.5)
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x_g = x.norm(p=2, dim=(2, 3), keepdim=True)
        x_n = x_g / (x_g.mean(dim=1, keepdim=True) + 1e-6)
        return x + torch.addcmul(self.bias.view(1, -1, 1, 1), self.weight.view(1, -1, 1, 1), x * x_n)


def drop_path(x: Tensor, drop_prob: float, training: bool) -> Tensor:
    """As timm has it; the identity in eval mode."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = x.new_empty(shape).bernoulli_(keep_prob)
    return x * random_tensor.div_(keep_prob)


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.drop_prob, self.training)


class ConvNeXtV2(nn.Module):
    """ConvNeXt V2 of timm: 1x1 convolutions as the MLP, LayerNorm2d, global response norm, drop path."""

    class Block(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.conv_dw = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
            self.norm = LayerNorm2d(dim, eps=1e-6)
            self.fc1 = nn.Conv2d(dim, 3 * dim, 1)
            self.grn = GlobalResponseNorm(3 * dim)
            self.fc2 = nn.Conv2d(3 * dim, dim, 1)
            self.drop_path = DropPath(0.1)

        def forward(self, x: Tensor) -> Tensor:
            out = self.fc2(self.grn(F.gelu(self.fc1(self.norm(self.conv_dw(x))))))
            return self.drop_path(out) + x

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 10, 4, stride=4), LayerNorm2d(10))
        self.stages = nn.Sequential(self.Block(10), self.Block(10))
        self.head_norm = LayerNorm2d(10)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.head_norm(self.stages(self.stem(x)).mean((2, 3), keepdim=True))
        return self.head(x.flatten(1))


class VisualAttention(nn.Module):
    """VAN: an attention map from a depthwise, a dilated depthwise and a pointwise convolution, multiplied in."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.BatchNorm2d(16))
        self.norm1 = nn.BatchNorm2d(16)
        self.proj_1 = nn.Conv2d(16, 16, 1)
        self.conv0 = nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.conv_spatial = nn.Conv2d(16, 16, 7, stride=1, padding=9, groups=16, dilation=3)
        self.conv1 = nn.Conv2d(16, 16, 1)
        self.proj_2 = nn.Conv2d(16, 16, 1)
        self.layer_scale_1 = nn.Parameter(torch.rand(16) * 0.5)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        u = F.gelu(self.proj_1(self.norm1(x)))
        attn = self.conv1(self.conv_spatial(self.conv0(u)))
        out = self.proj_2(u * attn)
        x = x + self.layer_scale_1.unsqueeze(-1).unsqueeze(-1) * out
        x = self.norm(x.flatten(2).transpose(1, 2))
        return self.head(x.mean(dim=1))


class HorNet(nn.Module):
    """HorNet: recursive gated convolution, `split` of uneven sizes, products of growing order."""

    def __init__(self) -> None:
        super().__init__()
        dim, order = 16, 3
        self.dims = [dim // 2**i for i in range(order)][::-1]  # 4, 8, 16
        self.stem = nn.Conv2d(3, dim, 4, stride=4)
        self.norm = LayerNorm2d(dim)
        self.proj_in = nn.Conv2d(dim, 2 * dim, 1)
        self.dwconv = nn.Conv2d(sum(self.dims), sum(self.dims), 7, padding=3, groups=sum(self.dims))
        self.pws = nn.ModuleList(nn.Conv2d(self.dims[i], self.dims[i + 1], 1) for i in range(order - 1))
        self.proj_out = nn.Conv2d(dim, dim, 1)
        self.head = classifier(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pwa, abc = torch.split(self.proj_in(self.norm(x)), (self.dims[0], sum(self.dims)), dim=1)
        dw_list = torch.split(self.dwconv(abc) * 0.5, self.dims, dim=1)
        out = pwa * dw_list[0]
        for pw, dw in zip(self.pws, dw_list[1:]):
            out = pw(out) * dw
        return self.head(x + self.proj_out(out))


class FocalNet(nn.Module):
    """FocalNet: a context of growing depthwise kernels, each level weighted by its own gate channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 14, stride=2)
        self.f = nn.Conv2d(14, 2 * 14 + 3, 1)
        self.focal_layers = nn.ModuleList(nn.Conv2d(14, 14, k, padding=k // 2, groups=14, bias=False) for k in (3, 5))
        self.h = nn.Conv2d(14, 14, 1)
        self.proj = nn.Conv2d(14, 14, 1)
        self.norm = nn.GroupNorm(1, 14)
        self.head = classifier(14)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        q, ctx, gates = torch.split(self.f(x), (14, 14, 3), 1)
        ctx_all = 0.0
        for level, layer in enumerate(self.focal_layers):
            ctx = F.gelu(layer(ctx))
            ctx_all = ctx_all + ctx * gates[:, level : level + 1]
        ctx_global = F.gelu(ctx.mean((2, 3), keepdim=True))
        ctx_all = ctx_all + ctx_global * gates[:, 2:]
        return self.head(self.norm(x + self.proj(q * self.h(ctx_all))))


class PoolFormer(nn.Module):
    """PoolFormer: a token mixer that is an average pool minus its input, GroupNorm of one group, layer scale."""

    class Block(nn.Module):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(1, dim), nn.GroupNorm(1, dim)
            self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
            self.fc1, self.fc2 = nn.Conv2d(dim, 2 * dim, 1), nn.Conv2d(2 * dim, dim, 1)
            self.layer_scale_1 = nn.Parameter(torch.rand(dim))
            self.layer_scale_2 = nn.Parameter(torch.rand(dim))

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(x)
            x = x + self.layer_scale_1.view(-1, 1, 1) * (self.pool(y) - y)
            return x + self.layer_scale_2.view(-1, 1, 1) * self.fc2(F.gelu(self.fc1(self.norm2(x))))

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 12, 7, stride=4, padding=2)
        self.network = nn.Sequential(self.Block(12), nn.Conv2d(12, 18, 3, stride=2, padding=1), self.Block(18))
        self.norm = nn.GroupNorm(1, 18)
        self.head = nn.Linear(18, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.network(self.patch_embed(x))).mean([-2, -1]))


class StarReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.8944))
        self.bias = nn.Parameter(torch.tensor(-0.4472))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.relu(x) ** 2 + self.bias


class CAFormer(nn.Module):
    """MetaFormer: inverted separable convolution with StarReLU, a learnable residual scale, norms without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 7, stride=4, padding=2)
        self.norm1 = LayerNorm2d(12, bias=False)
        self.pwconv1 = nn.Conv2d(12, 24, 1, bias=False)
        self.act1 = StarReLU()
        self.dwconv = nn.Conv2d(24, 24, 7, padding=3, groups=24, bias=False)
        self.pwconv2 = nn.Conv2d(24, 12, 1, bias=False)
        self.res_scale = nn.Parameter(torch.rand(12) + 0.5)
        self.mlp = nn.Sequential(nn.Conv2d(12, 30, 1, bias=False), StarReLU(), nn.Conv2d(30, 12, 1, bias=False))
        self.head_norm = nn.LayerNorm(12)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x * self.res_scale.view(12, 1, 1) + self.pwconv2(self.dwconv(self.act1(self.pwconv1(self.norm1(x)))))
        x = x + self.mlp(x) * 0.5
        return self.fc(self.head_norm(x.mean((2, 3))))


class InceptionNeXt(nn.Module):
    """InceptionNeXt: depthwise square, 1xk and kx1 kernels on some channels, the others passed through."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 18, act=None, stride=2)
        self.dwconv_hw = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.dwconv_w = nn.Conv2d(4, 4, (1, 11), padding=(0, 5), groups=4)
        self.dwconv_h = nn.Conv2d(4, 4, (11, 1), padding=(5, 0), groups=4)
        self.norm = nn.BatchNorm2d(18)
        self.fc1, self.fc2 = nn.Conv2d(18, 36, 1), nn.Conv2d(36, 18, 1)
        self.gamma = nn.Parameter(torch.rand(18))
        self.head = classifier(18)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x_id, x_hw, x_w, x_h = torch.split(x, (6, 4, 4, 4), dim=1)
        out = torch.cat((x_id, self.dwconv_hw(x_hw), self.dwconv_w(x_w), self.dwconv_h(x_h)), dim=1)
        out = self.fc2(F.gelu(self.fc1(self.norm(out))))
        return self.head(x + out.mul(self.gamma.reshape(1, -1, 1, 1)))


class ConvMixer(nn.Module):
    """ConvMixer: isotropic patches, a residual around depthwise 9x9, GELU ahead of each batch norm."""

    class Residual(nn.Module):
        def __init__(self, fn: nn.Module) -> None:
            super().__init__()
            self.fn = fn

        def forward(self, x: Tensor) -> Tensor:
            return self.fn(x) + x

    def __init__(self) -> None:
        super().__init__()
        dim = 15
        layers = [nn.Conv2d(3, dim, 4, stride=4), nn.GELU(), nn.BatchNorm2d(dim)]
        for _ in range(2):
            depthwise = nn.Conv2d(dim, dim, 9, groups=dim, padding="same")
            layers.append(self.Residual(nn.Sequential(depthwise, nn.GELU(), nn.BatchNorm2d(dim))))
            layers += [nn.Conv2d(dim, dim, 1), nn.GELU(), nn.BatchNorm2d(dim)]
        self.blocks = nn.Sequential(*layers)
        self.head = classifier(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


class StarNet(nn.Module):
    """StarNet: the product of two pointwise branches, one of them through ReLU6, between depthwise 7x7."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, act=nn.ReLU6, stride=2)
        self.dwconv = conv_bn(12, 12, kernel=7, act=None, groups=12)
        self.f1, self.f2 = nn.Conv2d(12, 30, 1), nn.Conv2d(12, 30, 1)
        self.g = conv_bn(30, 12, kernel=1, act=None)
        self.dwconv2 = nn.Conv2d(12, 12, 7, padding=3, groups=12)
        self.head = classifier(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.dwconv(x)
        x1, x2 = self.f1(y), self.f2(y)
        y = self.dwconv2(self.g(F.relu6(x1) * x2))
        return self.head(x + y)


FAMILY = "modern"
DEFINITIONS = (
    define("convnext", FAMILY, ConvNeXt),
    define("convnext_v2", FAMILY, ConvNeXtV2, ((2, 3, 36, 44),)),
    define("van", FAMILY, VisualAttention),
    define("hornet", FAMILY, HorNet, ((2, 3, 48, 48),)),
    define("focalnet", FAMILY, FocalNet),
    define("poolformer", FAMILY, PoolFormer, ((2, 3, 48, 48),)),
    define("caformer", FAMILY, CAFormer, ((2, 3, 60, 60),)),
    define("inception_next", FAMILY, InceptionNeXt),
    define("convmixer", FAMILY, ConvMixer, ((2, 3, 60, 60),)),
    define("starnet", FAMILY, StarNet),
)
