"""Networks whose blocks branch: parallel kernels, split and joined channels, aggregated and fused resolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class Inception(nn.Module):
    def __init__(self, in_channels: int, c1: int, c3: tuple[int, int], c5: tuple[int, int], pool: int) -> None:
        super().__init__()
        self.branch1 = conv_bn(in_channels, c1, kernel=1)
        self.branch2 = nn.Sequential(conv_bn(in_channels, c3[0], kernel=1), conv_bn(c3[0], c3[1]))
        self.branch3 = nn.Sequential(conv_bn(in_channels, c5[0], kernel=1), conv_bn(c5[0], c5[1], kernel=5))
        self.branch4 = nn.Sequential(
            nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True), conv_bn(in_channels, pool, kernel=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        outputs = [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]
        return torch.cat(outputs, 1)


class GoogLeNet(nn.Module):
    """GoogLeNet: the input rescaled per channel by slicing, inception branches with a padded max pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 16, kernel=7, stride=2)
        self.maxpool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3a = Inception(16, 6, (6, 10), (4, 6), 5)
        self.maxpool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3b = Inception(27, 8, (6, 12), (4, 6), 6)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        red = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
        green = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
        blue = torch.unsqueeze(x[:, 2], 1) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5
        x = torch.cat((red, green, blue), 1)
        x = self.inception3a(self.maxpool1(self.conv1(x)))
        x = self.inception3b(self.maxpool2(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.fc(self.dropout(x))


class FactorisedConv(nn.Module):
    """A convolution of any kernel, its norm with eps 0.001, an in-place ReLU."""

    def __init__(self, in_channels: int, channels: int, kernel: tuple[int, int], stride: int = 1) -> None:
        super().__init__()
        padding = (kernel[0] // 2, kernel[1] // 2) if stride == 1 else 0
        self.conv = nn.Conv2d(in_channels, channels, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class InceptionV3(nn.Module):
    """Inception V3: 1x7 and 7x1 factorised kernels, a fork inside a branch, reduction by unpadded strides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(FactorisedConv(3, 10, (3, 3), 2), FactorisedConv(10, 16, (3, 3)))
        self.branch7x7_1 = FactorisedConv(16, 8, (1, 1))
        self.branch7x7_2 = FactorisedConv(8, 10, (1, 7))
        self.branch7x7_3 = FactorisedConv(10, 12, (7, 1))
        self.branch_pool = FactorisedConv(16, 6, (1, 1))
        self.reduce3x3 = FactorisedConv(18, 12, (3, 3), 2)
        self.branch3x3_1 = FactorisedConv(30, 10, (1, 1))
        self.branch3x3_2a = FactorisedConv(10, 8, (1, 3))
        self.branch3x3_2b = FactorisedConv(10, 8, (3, 1))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        deep = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        pooled = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        x = torch.cat([deep, pooled], 1)
        x = torch.cat([self.reduce3x3(x), F.max_pool2d(x, kernel_size=3, stride=2)], 1)
        x = self.branch3x3_1(x)
        x = torch.cat([self.branch3x3_2a(x), self.branch3x3_2b(x)], 1)
        return self.fc(x.mean((2, 3)))


class InceptionResNet(nn.Module):
    """Inception-ResNet: joined branches projected by a biased 1x1, scaled by a constant and added to the input."""

    class Block(nn.Module):
        def __init__(self, channels: int, scale: float) -> None:
            super().__init__()
            self.scale = scale
            self.branch0 = conv_bn(channels, 8, kernel=1)
            self.branch1 = nn.Sequential(conv_bn(channels, 8, kernel=1), conv_bn(8, 10))
            self.conv2d = nn.Conv2d(18, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            out = self.conv2d(torch.cat((self.branch0(x), self.branch1(x)), 1))
            return F.relu(out * self.scale + x)

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 20, stride=2)
        self.repeat = nn.Sequential(self.Block(20, 0.5), nn.MaxPool2d(3, 2), self.Block(20, 0.3))
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.repeat(self.stem(x)))


class SeparableConv(nn.Module):
    def __init__(self, in_channels: int, channels: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, in_channels, kernel, stride, kernel // 2, groups=in_channels, bias=False)
        self.pointwise = nn.Conv2d(in_channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.conv1(x))


class Xception(nn.Module):
    """Xception: ReLU ahead of separable convolutions, a strided max pool in the branch, a projected skip."""

    class Block(nn.Module):
        def __init__(self, in_channels: int, channels: int) -> None:
            super().__init__()
            self.skip = conv_bn(in_channels, channels, kernel=1, act=None, stride=2)
            self.rep = nn.Sequential(
                nn.ReLU(inplace=False),
                SeparableConv(in_channels, channels),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
                SeparableConv(channels, channels),
                nn.BatchNorm2d(channels),
                nn.MaxPool2d(3, 2, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.rep(x) + self.skip(x)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(3, 12, stride=2, padding=0)
        self.block1 = self.Block(12, 20)
        self.block2 = self.Block(20, 28)
        self.fc = nn.Linear(28, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class FactorisedReduction(nn.Module):
    """Two strided 1x1 convolutions, the second a pixel off: pad to the right and below, crop left and above."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.path_1 = nn.Sequential(nn.AvgPool2d(1, stride=2, count_include_pad=False))
        self.conv_1 = nn.Conv2d(in_channels, channels // 2, 1, bias=False)
        self.pad = nn.ZeroPad2d((-1, 1, -1, 1))
        self.path_2 = nn.AvgPool2d(1, stride=2, count_include_pad=False)
        self.conv_2 = nn.Conv2d(in_channels, channels - channels // 2, 1, bias=False)
        self.final_path_bn = nn.BatchNorm2d(channels, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        x1 = self.conv_1(self.path_1(x))
        x2 = self.conv_2(self.path_2(self.pad(x)))
        return self.final_path_bn(torch.cat([x1, x2], 1))


class NASNet(nn.Module):
    """NASNet: cells of pairwise sums over two earlier outputs, a factorised reduction with a negative pad."""

    def __init__(self) -> None:
        super().__init__()
        self.conv0 = conv_bn(3, 12, act=None)
        self.reduce = conv_bn(12, 12, act=None, stride=2)
        self.conv_prev_1x1 = FactorisedReduction(12, 10)
        self.conv_1x1 = nn.Sequential(nn.ReLU(), *conv_bn(12, 10, kernel=1, act=None))
        self.comb_iter_0_left = SeparableConv(10, 10, 5)
        self.comb_iter_0_right = SeparableConv(10, 10, 3)
        self.comb_iter_1_left = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.comb_iter_2_right = nn.MaxPool2d(3, stride=1, padding=1)
        self.fc = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        before = self.conv0(x)
        now = self.reduce(before)
        left, right = self.conv_prev_1x1(before), self.conv_1x1(now)
        first = self.comb_iter_0_left(right) + self.comb_iter_0_right(left)
        second = self.comb_iter_1_left(right) + left
        third = self.comb_iter_1_left(left) + self.comb_iter_2_right(first)
        x = F.relu(torch.cat([left, first, second, third], 1))
        return self.fc(x.mean([2, 3]))


class DLA(nn.Module):
    """DLA: an aggregation tree, whose root joins children and pooled grandparents by a 1x1 convolution."""

    class Root(nn.Module):
        def __init__(self, in_channels: int, channels: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(in_channels, channels, 1, bias=False)
            self.bn = nn.BatchNorm2d(channels)

        def forward(self, children: list[Tensor]) -> Tensor:
            return F.relu(self.bn(self.conv(torch.cat(children, 1))) + children[0])

    def __init__(self) -> None:
        super().__init__()
        self.base_layer = conv_bn(3, 12, stride=2)
        self.downsample = nn.MaxPool2d(2, stride=2)
        self.project = conv_bn(12, 18, kernel=1, act=None)
        self.tree1 = conv_bn(12, 18, stride=2)
        self.tree2 = nn.Sequential(conv_bn(18, 18), conv_bn(18, 18, act=None))
        self.root = self.Root(18 + 18 + 12, 18)
        self.fc = nn.Conv2d(18, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.base_layer(x)
        bottom = self.downsample(x)
        x1 = F.relu(self.tree1(x) + self.project(bottom))
        x2 = F.relu(self.tree2(x1) + x1)
        x = self.root([x2, x1, bottom])
        x = self.fc(F.adaptive_avg_pool2d(x, 1))
        return x.flatten(1)


class CSPDarkNet(nn.Module):
    """CSPDarkNet: a stage split in two paths, one through residual blocks, joined again; Mish and leaky ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, act=nn.Mish)
        self.conv_down = conv_bn(12, 16, act=nn.Mish, stride=2)
        self.conv_exp = conv_bn(16, 24, kernel=1, act=nn.Mish)
        self.conv1 = conv_bn(12, 12, kernel=1, act=lambda: nn.LeakyReLU(0.1, inplace=True))
        self.conv2 = conv_bn(12, 12, act=lambda: nn.LeakyReLU(0.1, inplace=True))
        self.conv_transition_b = conv_bn(12, 12, kernel=1, act=nn.Mish)
        self.conv_transition = conv_bn(24, 24, kernel=1, act=nn.Mish)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_exp(self.conv_down(self.stem(x)))
        xs, xb = x.split(12, dim=1)
        xb = xb + self.conv2(self.conv1(xb))
        xb = self.conv_transition_b(xb).contiguous()
        return self.head(self.conv_transition(torch.cat([xs, xb], dim=1)))


class YOLO(nn.Module):
    """C2f and SPPF of the YOLO detectors: a chunked list that grows, and one max pool applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, act=nn.SiLU, stride=2), conv_bn(12, 20, act=nn.SiLU, stride=2))
        self.cv1 = conv_bn(20, 20, kernel=1, act=nn.SiLU)
        self.m = nn.ModuleList(nn.Sequential(conv_bn(10, 10, act=nn.SiLU), conv_bn(10, 10, act=nn.SiLU)) for _ in "ab")
        self.cv2 = conv_bn(40, 20, kernel=1, act=nn.SiLU)
        self.sppf1 = conv_bn(20, 10, kernel=1, act=nn.SiLU)
        self.pool = nn.MaxPool2d(kernel_size=5, stride=1, padding=2)
        self.sppf2 = conv_bn(40, 24, kernel=1, act=nn.SiLU)
        self.detect = nn.Conv2d(24, 2 * (CLASSES + 4), 1)

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(self.stem(x)).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        y = [self.sppf1(self.cv2(torch.cat(y, 1)))]
        y.extend(self.pool(y[-1]) for _ in range(3))
        x = self.detect(self.sppf2(torch.cat(y, 1)))
        b, _, h, w = x.shape
        return x.view(b, 2, CLASSES + 4, h, w).permute(0, 1, 3, 4, 2).contiguous().view(b, -1, CLASSES + 4)


class VoVNet(nn.Module):
    """VoVNet: one-shot aggregation of a chain of convolutions, an effective gate with hardsigmoid, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 10, stride=2), conv_bn(10, 18))
        self.conv_mid = nn.ModuleList(conv_bn(18 if i == 0 else 9, 9) for i in range(3))
        self.conv_concat = conv_bn(18 + 27, 18, kernel=1)
        self.attn = nn.Conv2d(18, 18, kernel_size=1)
        self.head = classifier(18)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        output = [x]
        for conv in self.conv_mid:
            output.append(conv(output[-1]))
        out = self.conv_concat(torch.cat(output, dim=1))
        gate = self.attn(out.mean((2, 3), keepdim=True))
        return self.head(out * F.hardsigmoid(gate) + x)


class HRNet(nn.Module):
    """HRNet: parallel resolutions exchanged by strided convolutions down and nearest upsampling up."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 12))
        self.transition = conv_bn(12, 20, stride=2)
        self.branch0 = conv_bn(12, 12)
        self.branch1 = conv_bn(20, 20)
        self.up = nn.Sequential(
            nn.Conv2d(20, 12, 1, bias=False), nn.BatchNorm2d(12), nn.Upsample(scale_factor=2, mode="nearest")
        )
        self.down = conv_bn(12, 20, act=None, stride=2)
        self.incre = nn.ModuleList((conv_bn(12, 16, kernel=1), conv_bn(20, 24, kernel=1)))
        self.downsamp = conv_bn(16, 24, stride=2)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x0 = self.stem(x)
        x1 = self.branch1(self.transition(x0))
        x0 = self.branch0(x0)
        y0 = F.relu(x0 + self.up(x1))
        y1 = F.relu(self.down(x0) + x1)
        return self.head(self.incre[1](y1) + self.downsamp(self.incre[0](y0)))


class FractalNet(nn.Module):
    """FractalNet: columns of different depth stacked on a new axis and averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 14, stride=2)
        self.short = conv_bn(14, 14)
        self.middle = nn.Sequential(conv_bn(14, 14), conv_bn(14, 14))
        self.long = nn.Sequential(conv_bn(14, 14), conv_bn(14, 14), conv_bn(14, 14))
        self.head = classifier(14)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.stack([self.short(x), self.middle(x), self.long(x)]).mean(dim=0))


FAMILY = "branches"
DEFINITIONS = (
    define("googlenet", FAMILY, GoogLeNet, ((2, 3, 60, 60),)),
    define("inception_v3", FAMILY, InceptionV3, ((2, 3, 35, 35),)),
    define("inception_resnet", FAMILY, InceptionResNet, ((2, 3, 33, 33),)),
    define("xception", FAMILY, Xception, ((2, 3, 41, 41),)),
    define("nasnet", FAMILY, NASNet),
    define("dla", FAMILY, DLA),
    define("csp_darknet", FAMILY, CSPDarkNet),
    define("yolo", FAMILY, YOLO, ((2, 3, 48, 40),), loss="mse"),
    define("vovnet", FAMILY, VoVNet),
    define("hrnet", FAMILY, HRNet),
    define("fractalnet", FAMILY, FractalNet, ((2, 3, 30, 30),)),
)
