"""Dense prediction with one map of context: torchvision's heads, and those that pool or attend over the whole map."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, conv_bn
from tests.models.definitions.decoders import WIDTHS, Encoder
from tests.models.definitions.definition import define
from tests.models.definitions.mobile import InvertedResidual


class Backbone(nn.Module):
    """Four stages, strides 2, 4, 8 and 8 with a dilation; the last two maps under torchvision's names."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.layer2 = conv_bn(12, 16, stride=2)
        self.layer3 = nn.Sequential(*conv_bn(16, 20, stride=2), *(conv_bn(20, 20) for _ in range(depth - 1)))
        self.layer4 = nn.Sequential(
            *conv_bn(20, 28, dilation=2), *(conv_bn(28, 28, dilation=2) for _ in range(depth - 1))
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        aux = self.layer3(self.layer2(self.stem(x)))
        return OrderedDict(aux=aux, out=self.layer4(aux))


class FCNHead(nn.Sequential):
    def __init__(self, in_channels: int) -> None:
        inter = in_channels // 2
        super().__init__(*conv_bn(in_channels, inter), nn.Dropout(0.1), nn.Conv2d(inter, CLASSES, 1))


class FCN(nn.Module):
    """FCN: a dict of `out` and `aux`, both resized bilinearly to the input."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.backbone = Backbone(depth)
        self.classifier = FCNHead(28)
        self.aux_classifier = FCNHead(20)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        result = OrderedDict()
        x = self.classifier(features["out"])
        result["out"] = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        x = self.aux_classifier(features["aux"])
        result["aux"] = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        return result


class SkipFCN(nn.Module):
    """FCN-8s: class scores of two strides added, learnt transposed upsampling, centred crops by slicing."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.down = conv_bn(28, 32, stride=2)
        self.score_fr = nn.Conv2d(32, CLASSES, 1)
        self.score_skip = nn.Conv2d(20, CLASSES, 1)
        self.upscore2 = nn.ConvTranspose2d(CLASSES, CLASSES, 4, stride=2, bias=False)
        self.upscore8 = nn.ConvTranspose2d(CLASSES, CLASSES, 16, stride=8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        score = self.upscore2(self.score_fr(self.down(features["out"])))
        skip = self.score_skip(features["aux"])
        score = score[:, :, 1 : 1 + skip.size(2), 1 : 1 + skip.size(3)] + skip
        score = self.upscore8(score)
        return score[:, :, 4 : 4 + x.size(2), 4 : 4 + x.size(3)].contiguous()


class ASPPPooling(nn.Sequential):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), *conv_bn(in_channels, channels, kernel=1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        for module in self:
            x = module(x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    def __init__(self, in_channels: int, channels: int, rates: tuple[int, ...], separable: bool = False) -> None:
        super().__init__()
        branches: list[nn.Module] = [conv_bn(in_channels, channels, kernel=1)]
        for rate in rates:
            if separable:
                depthwise = nn.Conv2d(in_channels, in_channels, 3, 1, rate, rate, groups=in_channels, bias=False)
                branches.append(nn.Sequential(depthwise, conv_bn(in_channels, channels, kernel=1)))
            else:
                branches.append(conv_bn(in_channels, channels, dilation=rate))
        branches.append(ASPPPooling(in_channels, channels))
        self.convs = nn.ModuleList(branches)
        self.project = nn.Sequential(conv_bn(len(branches) * channels, channels, kernel=1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([conv(x) for conv in self.convs], dim=1))


class DeepLabV3(nn.Module):
    """DeepLab V3: atrous spatial pyramid with an image-level branch broadcast back by interpolation."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.backbone = Backbone(depth)
        self.classifier = nn.Sequential(ASPP(28, 12, (2, 3, 4)), conv_bn(12, 12), nn.Conv2d(12, CLASSES, 1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.classifier(self.backbone(x)["out"])
        return {"out": F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class DeepLabV3Plus(nn.Module):
    """DeepLab V3+: separable pyramid, `nn.UpsamplingBilinear2d`, joined with reduced high-resolution features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10, stride=2)
        self.layer1 = conv_bn(10, 14, stride=2)
        self.layer2 = conv_bn(14, 24, stride=2)
        self.aspp = ASPP(24, 16, (2, 3), separable=True)
        self.up = nn.UpsamplingBilinear2d(scale_factor=2)
        self.block1 = conv_bn(14, 6, kernel=1)
        self.block2 = nn.Sequential(nn.Conv2d(22, 22, 3, padding=1, groups=22, bias=False), *conv_bn(22, 16, kernel=1))
        self.segmentation_head = nn.Sequential(nn.Conv2d(16, CLASSES, 1), nn.UpsamplingBilinear2d(scale_factor=4))

    def forward(self, x: Tensor) -> Tensor:
        high = self.layer1(self.stem(x))
        deep = self.up(self.aspp(self.layer2(high)))
        fused = self.block2(torch.cat([deep, self.block1(high)], dim=1))
        return self.segmentation_head(fused)


class PSPNet(nn.Module):
    """PSPNet: adaptive average pools of 1, 2, 3 and 6 cells, resized with aligned corners and joined."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, channels: int, size: int) -> None:
            super().__init__()
            act = [nn.ReLU(inplace=True)]
            norm = [] if size == 1 else [nn.BatchNorm2d(channels)]
            conv = nn.Conv2d(in_channels, channels, 1, bias=size == 1)
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(output_size=(size, size)), conv, *norm, *act)

        def forward(self, x: Tensor) -> Tensor:
            h, w = x.size(2), x.size(3)
            return F.interpolate(self.pool(x), size=(h, w), mode="bilinear", align_corners=True)

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.backbone = Backbone(depth)
        self.blocks = nn.ModuleList(self.Block(28, 7, size) for size in (1, 2, 3, 6))
        self.conv = conv_bn(56, 24, kernel=1)
        self.dropout = nn.Dropout2d(p=0.2)
        self.head = nn.Sequential(nn.Conv2d(24, CLASSES, 3, padding=1), nn.UpsamplingBilinear2d(scale_factor=8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.backbone(x)["out"]
        x = torch.cat([block(x) for block in self.blocks] + [x], dim=1)
        return self.head(self.dropout(self.conv(x)))


class LRASPP(nn.Module):
    """LR-ASPP: a sigmoid gate from the pooled map, two resolutions of class scores added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, act=nn.Hardswish, stride=2)
        self.low = InvertedResidual(12, 14, 2, 2, act=nn.ReLU)
        self.high = InvertedResidual(14, 20, 2, 3, kernel=5, act=nn.Hardswish)
        self.cbr = conv_bn(20, 16, kernel=1)
        self.scale = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(20, 16, 1, bias=False), nn.Sigmoid())
        self.low_classifier = nn.Conv2d(14, CLASSES, 1)
        self.high_classifier = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        low = self.low(self.stem(x))
        high = self.high(low)
        gated = self.cbr(high) * self.scale(high)
        gated = F.interpolate(gated, size=low.shape[-2:], mode="bilinear", align_corners=False)
        out = self.low_classifier(low) + self.high_classifier(gated)
        return {"out": F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class ObjectContext(nn.Module):
    """OCRNet: soft object regions by softmax over pixels, gathered and handed back to pixels by two `bmm`."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.aux_head = nn.Sequential(conv_bn(28, 20), nn.Conv2d(20, CLASSES, 1))
        self.conv3x3 = conv_bn(28, 16)
        self.f_pixel = conv_bn(16, 8, kernel=1)
        self.f_object = nn.Sequential(nn.Conv1d(16, 8, 1, bias=False), nn.BatchNorm1d(8), nn.ReLU())
        self.conv_bn_dropout = conv_bn(32, 16, kernel=1)
        self.cls_head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        size = x.shape[-2:]
        features = self.backbone(x)["out"]
        aux = self.aux_head(features)
        pixels = self.conv3x3(features)
        n, c, h, w = pixels.shape
        regions = F.softmax(aux.view(n, CLASSES, -1), dim=2)
        context = torch.matmul(regions, pixels.view(n, c, -1).permute(0, 2, 1))  # [N, classes, C]
        query = self.f_pixel(pixels).view(n, 8, -1).permute(0, 2, 1)
        key = self.f_object(context.permute(0, 2, 1))
        similarity = F.softmax(torch.bmm(query, key) * 8**-0.5, dim=-1)
        gathered = torch.bmm(similarity, context).permute(0, 2, 1).contiguous().view(n, c, h, w)
        out = self.cls_head(self.conv_bn_dropout(torch.cat([gathered, pixels], 1)))
        return [F.interpolate(y, size=size, mode="bilinear", align_corners=True) for y in (out, aux)]


class SegFormerHead(nn.Module):
    """SegFormer head: linear layers over flattened pixels, reshaped to maps, resized and fused by a 1x1."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.refine = nn.ModuleList(conv_bn(width, width) for width in WIDTHS[1:])
        self.mlp = nn.ModuleList(nn.Linear(width, 12) for width in WIDTHS[1:])
        self.fuse_stage = conv_bn(36, 16, kernel=1)
        self.head = nn.Conv2d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [conv(f) for conv, f in zip(self.refine, self.encoder(x)[1:])]
        resized = []
        for linear, feature in zip(self.mlp, features):
            b, _, h, w = feature.shape
            tokens = linear(feature.flatten(2).transpose(1, 2))
            tokens = tokens.transpose(1, 2).contiguous().reshape(b, -1, h, w)
            resized.append(F.interpolate(tokens, size=features[0].shape[2:], mode="bilinear", align_corners=False))
        out = self.head(self.fuse_stage(torch.cat(resized[::-1], dim=1)))
        return F.interpolate(out, scale_factor=2, mode="bilinear", align_corners=False)


FAMILY = "segmentation"
DEFINITIONS = (
    define("fcn", FAMILY, FCN, ((2, 3, 40, 48),), layers=5),
    define("fcn_skip", FAMILY, SkipFCN, ((2, 3, 48, 48),)),
    define("deeplabv3", FAMILY, DeepLabV3, ((4, 3, 56, 56),)),
    define("deeplabv3plus", FAMILY, DeepLabV3Plus, ((4, 3, 48, 64),)),
    define("pspnet", FAMILY, PSPNet, ((2, 3, 56, 56),)),
    define("lraspp", FAMILY, LRASPP, ((2, 3, 52, 44),)),
    define("object_context", FAMILY, ObjectContext, ((2, 3, 40, 40),)),
    define("segformer_head", FAMILY, SegFormerHead),
)
