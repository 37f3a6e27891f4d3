"""Dense prediction with a decoder: the U-Nets, the pyramids, and what segmentation_models_pytorch puts between."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, conv_bn
from tests.models.definitions.definition import define

WIDTHS = (10, 14, 20, 28)  # of the encoder's maps, strides 1, 2, 4, 8


class Encoder(nn.Module):
    """One convolution a resolution; returns every map, the finest first."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for index, (in_channels, channels) in enumerate(zip((3, *widths), widths)):
            self.stages.append(conv_bn(in_channels, channels, stride=1 if index == 0 else 2))

    def forward(self, x: Tensor) -> list[Tensor]:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class DoubleConv(nn.Sequential):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(inplace=True),
        )


class UNetTransposed(nn.Module):
    """U-Net as published: max pools down, transposed convolutions up, odd maps padded to their skip, `cat`."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 8)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(8, 16))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(16, 24))
        self.up1 = nn.ConvTranspose2d(24, 16, kernel_size=2, stride=2)
        self.conv1 = DoubleConv(32, 16)
        self.up2 = nn.ConvTranspose2d(16, 8, kernel_size=2, stride=2)
        self.conv2 = DoubleConv(16, 8)
        self.outc = nn.Conv2d(8, CLASSES, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.conv1(self._join(self.up1(x3), x2))
        x = self.conv2(self._join(self.up2(x), x1))
        return self.outc(x)

    @staticmethod
    def _join(x: Tensor, skip: Tensor) -> Tensor:
        rows, columns = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return torch.cat([skip, x], dim=1)


class UNetBilinear(nn.Module):
    """U-Net with bilinear upsampling modules of aligned corners and normalised double convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv1 = conv_bn(48, 18)
        self.conv2 = conv_bn(32, 14)
        self.conv3 = conv_bn(24, 10)
        self.head = nn.Conv2d(10, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2, x3, x = self.encoder(x)
        x = self.conv1(torch.cat([x3, self.up(x)], dim=1))
        x = self.conv2(torch.cat([x2, self.up(x)], dim=1))
        x = self.conv3(torch.cat([x1, self.up(x)], dim=1))
        return self.head(x)


class Gate(nn.Module):
    """scSE: a channel gate and a spatial gate of the same map, summed."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cSE = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Sigmoid(),
        )
        self.sSE = nn.Sequential(nn.Conv2d(channels, 1, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.cSE(x) + x * self.sSE(x)


class NearestDecoder(nn.Module):
    def __init__(self, in_channels: int, skip: int, channels: int) -> None:
        super().__init__()
        self.conv1 = conv_bn(in_channels + skip, channels)
        self.attention2 = Gate(channels)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = F.interpolate(x, size=(skip.shape[2], skip.shape[3]), mode="nearest")
        return self.attention2(self.conv1(torch.cat([x, skip], dim=1)))


class UNetGated(nn.Module):
    """U-Net of segmentation_models: nearest upsampling to the skip's size, scSE gates in the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.blocks = nn.ModuleList((NearestDecoder(28, 20, 18), NearestDecoder(18, 14, 12)))
        self.segmentation_head = nn.Conv2d(12, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)[::-1]
        x, skips = features[0], features[1:]
        for block, skip in zip(self.blocks, skips):
            x = block(x, skip)
        return self.segmentation_head(x)


class UNetPlusPlus(nn.Module):
    """U-Net++: a triangle of nested nodes, each fed by all before it in its row, kept in a dict."""

    def __init__(self) -> None:
        super().__init__()
        widths = (8, 12, 16)
        self.encoder = Encoder(widths)
        self.nodes = nn.ModuleDict(
            {
                "x_0_1": conv_bn(8 + 12, 8),
                "x_1_1": conv_bn(12 + 16, 12),
                "x_0_2": conv_bn(2 * 8 + 12, 8),
            }
        )
        self.final = nn.Conv2d(8, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        dense = {f"x_{row}_0": feature for row, feature in enumerate(self.encoder(x))}
        for name, node in self.nodes.items():
            _, row, column = name.split("_")
            below = F.interpolate(dense[f"x_{int(row) + 1}_{int(column) - 1}"], scale_factor=2.0, mode="nearest")
            dense[name] = node(torch.cat([dense[f"x_{row}_{i}"] for i in range(int(column))] + [below], dim=1))
        return self.final(dense["x_0_2"])


class MANet(nn.Module):
    """MA-Net: position attention over all pixels at the bottom, gates summed from two maps on the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.top_conv = nn.Conv2d(28, 6, 1)
        self.center_conv = nn.Conv2d(28, 6, 1)
        self.bottom_conv = nn.Conv2d(28, 28, 3, padding=1)
        self.map_softmax = nn.Softmax(dim=1)
        self.out_conv = nn.Conv2d(28, 28, 3, padding=1)
        self.hl_conv = nn.Sequential(conv_bn(28, 28), conv_bn(28, 20, kernel=1))
        self.gate_low = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 5, 1), nn.ReLU(), nn.Conv2d(5, 20, 1))
        self.gate_high = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 5, 1), nn.ReLU(), nn.Conv2d(5, 20, 1))
        self.conv = conv_bn(40, 12)
        self.head = nn.Conv2d(12, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        *_, low, high = self.encoder(x)
        high = self._attend(high)
        high = F.interpolate(self.hl_conv(high), scale_factor=2, mode="nearest")
        gate = torch.sigmoid(self.gate_low(low)) + torch.sigmoid(self.gate_high(high))
        out = self.head(self.conv(torch.cat([high * gate, low], dim=1)))
        return F.interpolate(out, scale_factor=4, mode="bilinear", align_corners=True)

    def _attend(self, x: Tensor) -> Tensor:
        b, c, h, w = x.size()
        top = self.top_conv(x).flatten(2)
        center = self.center_conv(x).flatten(2).transpose(1, 2)
        bottom = self.bottom_conv(x).flatten(2).transpose(1, 2)
        weights = self.map_softmax(torch.matmul(center, top).view(b, -1) / 6).view(b, h * w, h * w)
        return self.out_conv(x + torch.matmul(weights, bottom).transpose(1, 2).reshape(b, c, h, w) * h * w)


class LinkNet(nn.Module):
    """LinkNet: decoder blocks of 1x1, 4x4 transposed and 1x1 convolutions, skips added and not joined."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, channels: int) -> None:
            super().__init__()
            inner = in_channels // 4
            self.block = nn.Sequential(
                conv_bn(in_channels, inner, kernel=1),
                nn.ConvTranspose2d(inner, inner, kernel_size=4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(inplace=True),
                conv_bn(inner, channels, kernel=1),
            )

        def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
            x = self.block(x)
            return x if skip is None else x + skip

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder((12, 16, 24, 32))
        self.blocks = nn.ModuleList((self.Block(32, 24), self.Block(24, 16), self.Block(16, 12)))
        self.head = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2, x3, x = self.encoder(x)
        for block, skip in zip(self.blocks, (x3, x2, x1)):
            x = block(x, skip)
        return self.head(x)


class Conv3x3GNReLU(nn.Module):
    def __init__(self, in_channels: int, channels: int, upsample: bool) -> None:
        super().__init__()
        self.upsample = upsample
        self.block = nn.Sequential(
            nn.Conv2d(in_channels, channels, 3, padding=1, bias=False), nn.GroupNorm(4, channels), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False) if self.upsample else x


class FPN(nn.Module):
    """FPN decoder: lateral sums over nearest upsampling, GroupNorm segmentation branches, summed and dropped out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.p5 = nn.Conv2d(28, 16, kernel_size=1)
        self.p4_skip = nn.Conv2d(20, 16, kernel_size=1)
        self.p3_skip = nn.Conv2d(14, 16, kernel_size=1)
        self.seg5 = nn.Sequential(Conv3x3GNReLU(16, 12, True), Conv3x3GNReLU(12, 12, True))
        self.seg4 = Conv3x3GNReLU(16, 12, True)
        self.seg3 = Conv3x3GNReLU(16, 12, False)
        self.dropout = nn.Dropout2d(p=0.2, inplace=True)
        self.head = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, c3, c4, c5 = self.encoder(x)
        p5 = self.p5(c5)
        p4 = F.interpolate(p5, scale_factor=2.0, mode="nearest") + self.p4_skip(c4)
        p3 = F.interpolate(p4, scale_factor=2.0, mode="nearest") + self.p3_skip(c3)
        merged = sum([self.seg5(p5), self.seg4(p4), self.seg3(p3)])
        out = self.head(self.dropout(merged))
        return F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=True)


class PathAggregation(nn.Module):
    """PANet neck: top-down then bottom-up, one class map for every level in a tuple of three sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.lateral = nn.ModuleList(nn.Conv2d(width, 12, 1) for width in WIDTHS[1:])
        self.smooth = nn.ModuleList(conv_bn(12, 12, act=nn.SiLU) for _ in range(3))
        self.down = nn.ModuleList(conv_bn(12, 12, act=nn.SiLU, stride=2) for _ in range(2))
        self.heads = nn.ModuleList(nn.Conv2d(12, CLASSES, 1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        levels = [conv(feature) for conv, feature in zip(self.lateral, self.encoder(x)[1:])]
        for index in (1, 0):
            size = levels[index].shape[-2:]
            levels[index] = levels[index] + F.interpolate(levels[index + 1], size=size, mode="nearest")
        levels = [conv(level) for conv, level in zip(self.smooth, levels)]
        for index in (0, 1):
            levels[index + 1] = levels[index + 1] + self.down[index](levels[index])
        return tuple(head(level) for head, level in zip(self.heads, levels))


class PyramidAttention(nn.Module):
    """PAN: a pyramid of 7x7, 5x5 and 3x3 maps multiplied in, then global attention upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.branch1 = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_bn(28, 16, kernel=1))
        self.mid = conv_bn(28, 16, kernel=1)
        self.down1 = nn.Sequential(nn.MaxPool2d(2, 2), conv_bn(28, 1, kernel=7))
        self.down2 = nn.Sequential(nn.MaxPool2d(2, 2), conv_bn(1, 1, kernel=5))
        self.conv2 = conv_bn(1, 1, kernel=5)
        self.conv1 = conv_bn(1, 1, kernel=7)
        self.gau_low = conv_bn(20, 16)
        self.gau_high = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_bn(16, 16, kernel=1, act=nn.Sigmoid))
        self.head = nn.Conv2d(16, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        *_, low, high = self.encoder(x)
        size = (high.size(2), high.size(3))
        b1 = F.interpolate(self.branch1(high), size=size, mode="bilinear", align_corners=True)
        x1 = self.down1(high)
        x2 = F.interpolate(self.conv2(self.down2(x1)), size=x1.shape[2:], mode="bilinear", align_corners=True)
        weights = F.interpolate(self.conv1(x1) + x2, size=size, mode="bilinear", align_corners=True)
        y = self.mid(high) * weights + b1
        up = F.interpolate(y, size=low.shape[2:], mode="bilinear", align_corners=True)
        y = up + self.gau_low(low) * self.gau_high(y)
        return F.interpolate(self.head(y), scale_factor=4, mode="bilinear", align_corners=True)


class UPerNet(nn.Module):
    """UPerNet: pyramid pooling on the coarsest map, top-down sums, all levels resized to the finest and fused."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.ppm = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(s), conv_bn(28, 8, kernel=1)) for s in (2, 3))
        self.bottleneck = conv_bn(28 + 16, 12)
        self.lateral_convs = nn.ModuleList(conv_bn(width, 12, kernel=1) for width in WIDTHS[1:3])
        self.fpn_convs = nn.ModuleList(conv_bn(12, 12) for _ in range(2))
        self.fpn_bottleneck = conv_bn(36, 12)
        self.conv_seg = nn.Conv2d(12, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        top = features[-1]
        pooled = [F.interpolate(s(top), size=top.shape[2:], mode="bilinear", align_corners=False) for s in self.ppm]
        laterals = [conv(f) for conv, f in zip(self.lateral_convs, features[1:3])]
        laterals.append(self.bottleneck(torch.cat([top, *pooled], dim=1)))
        for i in range(len(laterals) - 1, 0, -1):
            shape = laterals[i - 1].shape[2:]
            laterals[i - 1] = laterals[i - 1] + F.interpolate(
                laterals[i], size=shape, mode="bilinear", align_corners=False
            )
        outs = [conv(lateral) for conv, lateral in zip(self.fpn_convs, laterals)] + [laterals[-1]]
        for i in range(1, len(outs)):
            outs[i] = F.interpolate(outs[i], size=outs[0].shape[2:], mode="bilinear", align_corners=False)
        out = self.conv_seg(self.fpn_bottleneck(torch.cat(outs, dim=1)))
        return F.interpolate(out, size=x.shape[2:], mode="bilinear", align_corners=False)


class SegNet(nn.Module):
    """SegNet: max pools that return their indices, and the unpooling that uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.enc1 = conv_bn(3, 10)
        self.enc2 = conv_bn(10, 16)
        self.enc3 = conv_bn(16, 20)
        self.pool = nn.MaxPool2d(2, stride=2, return_indices=True)
        self.unpool = nn.MaxUnpool2d(2, stride=2)
        self.dec3 = conv_bn(20, 16)
        self.dec2 = conv_bn(16, 10)
        self.dec1 = nn.Conv2d(10, CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x, indices1 = self.pool(self.enc1(x))
        x, indices2 = self.pool(self.enc2(x))
        x = self.dec3(self.enc3(x))
        x = self.dec2(self.unpool(x, indices2))
        return self.dec1(self.unpool(x, indices1))


FAMILY = "decoders"
DEFINITIONS = (
    define("unet_transposed", FAMILY, UNetTransposed, ((2, 3, 35, 38),)),
    define("unet_bilinear", FAMILY, UNetBilinear),
    define("unet_gated", FAMILY, UNetGated, ((2, 3, 36, 44),)),
    define("unetplusplus", FAMILY, UNetPlusPlus),
    define("manet", FAMILY, MANet, ((2, 3, 40, 40),)),
    define("linknet", FAMILY, LinkNet),
    define("fpn", FAMILY, FPN),
    define("path_aggregation", FAMILY, PathAggregation, ((2, 3, 36, 36),)),
    define("pyramid_attention", FAMILY, PyramidAttention, ((4, 3, 48, 48),)),
    define("upernet", FAMILY, UPerNet, ((2, 3, 40, 48),)),
    define("segnet", FAMILY, SegNet),
)
