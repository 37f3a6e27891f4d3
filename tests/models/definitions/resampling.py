"""Padding, cropping and resizing: every mode, and fixed filters, shuffles of pixels and transposed convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class PaddingModes(nn.Module):
    """Convolutions whose own padding reflects, replicates, and wraps around."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 7, stride=2, padding=3, padding_mode="reflect")
        self.conv2 = nn.Conv2d(12, 14, 3, padding=1, padding_mode="replicate")
        self.conv3 = nn.Conv2d(14, 18, 5, stride=2, padding=2, padding_mode="circular")
        self.conv4 = nn.Conv2d(18, 18, 3, padding=1, padding_mode="reflect", groups=3)
        self.conv5 = nn.Conv2d(18, 21, 3, padding=(0, 1), padding_mode="replicate")
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4, self.conv5):
            x = F.relu(conv(x))
        return self.head(x)


class PaddingLayers(nn.Module):
    """Padding layers and `F.pad`: reflected, replicated, circular, by a constant, uneven on the four sides."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReflectionPad2d((1, 2, 0, 3)),
            nn.Conv2d(3, 12, 3, stride=2),
            nn.ReLU(),
            nn.ReplicationPad2d((2, 0, 1, 1)),
            nn.Conv2d(12, 14, 3),
            nn.ReLU(),
            nn.CircularPad2d((1, 1, 2, 0)),
            nn.Conv2d(14, 18, 3),
            nn.ReLU(),
            nn.ZeroPad2d((0, 1, 0, 1)),
        )
        self.conv4 = nn.Conv2d(18, 18, 3, stride=2)
        self.conv5 = nn.Conv2d(18, 21, 3)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv4(self.layers(x)))
        x = F.pad(x, (1, 0, 1, 1), mode="constant", value=0.5)
        x = F.pad(x, (1, 1, 0, 1), "reflect")
        return self.head(F.relu(self.conv5(x)))


class Cropping(nn.Module):
    """Crops: negative padding, slices with steps, `narrow`, and an unpadded block whose skip is cut to size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.conv1 = conv_bn(12, 12, padding=0)
        self.conv2 = conv_bn(12, 12, padding=0, act=None)
        self.conv3 = conv_bn(12, 18)
        self.conv4 = conv_bn(18, 18)
        self.conv5 = nn.Conv2d(18, 21, 1)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.conv2(self.conv1(x)) + x[:, :, 2:-2, 2:-2])
        x = self.conv3(F.pad(x, (-1, 0, 0, -1)))
        x = self.conv4(x[..., ::2, 1::2])
        return self.head(F.relu(self.conv5(x.narrow(2, 0, 5))))


class BlurPool(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.padding = nn.ReflectionPad2d((1, 1, 1, 1))
        taps = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("filt", (taps[:, None] * taps[None, :])[None, None].repeat(channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(self.padding(x), self.filt, stride=2, groups=self.channels)


class BlurNet(nn.Module):
    """Anti-aliased ResNet: a fixed binomial depthwise filter in a buffer after reflection pads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12), nn.MaxPool2d(3, stride=1, padding=1), BlurPool(12))
        self.conv1 = nn.Sequential(conv_bn(12, 18), BlurPool(18))
        self.conv2 = conv_bn(18, 18, act=None)
        self.downsample = nn.Sequential(BlurPool(12), conv_bn(12, 18, kernel=1, act=None))
        self.last = conv_bn(18, 24)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.last(F.relu(self.conv2(self.conv1(x)) + self.downsample(x))))


class SpaceToDepth(nn.Module):
    """TResNet: 4x4 pixels moved into channels by view and permute, then leaky ReLU blocks with gates."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv_bn(48, 16)
        self.conv2 = conv_bn(16, 16, act=lambda: nn.LeakyReLU(1e-3))
        self.conv3 = conv_bn(16, 16, act=None)
        self.fc1, self.fc2 = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.last = conv_bn(16, 24, stride=2)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, c, h // 4, 4, w // 4, 4)
        x = x.permute(0, 3, 5, 1, 2, 4).contiguous().view(n, c * 16, h // 4, w // 4)
        x = self.conv1(x)
        out = self.conv3(self.conv2(x))
        gate = self.fc2(F.relu(self.fc1(out.view(n, 16, -1).mean(-1).view(n, 16, 1, 1)))).sigmoid()
        return self.head(self.last(F.relu(out * gate + x)))


class SuperResolution(nn.Module):
    """EDSR: scaled residual blocks, a long skip, `nn.PixelShuffle` upsampling, an image out."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 16, 3, padding=1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(True), nn.Conv2d(16, 16, 3, padding=1))
            for _ in range(2)
        )
        self.upsample = nn.Sequential(nn.Conv2d(16, 36, 3, padding=1), nn.PixelShuffle(2))
        self.tail = nn.Conv2d(9, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        skip = x = self.head(x)
        for block in self.body:
            x = x + block(x) * 0.1
        return self.tail(self.upsample(x + skip))


class PixelShuffles(nn.Module):
    """Pixel unshuffle by module and by function, a channel shuffle by function, and pixel shuffle back."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.PixelUnshuffle(2)
        self.conv1 = conv_bn(12, 16)
        self.conv2 = conv_bn(64, 18, groups=2)
        self.conv3 = conv_bn(18, 24, groups=3)
        self.conv4 = conv_bn(6, 14)
        self.conv5 = nn.Conv2d(14, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.down(x))
        x = self.conv2(F.pixel_unshuffle(x, 2))
        x = self.conv3(F.channel_shuffle(x, 3))
        x = self.conv4(F.pixel_shuffle(x, 2))
        return F.interpolate(self.conv5(x), scale_factor=2, mode="bilinear", align_corners=False)


class Resized(nn.Module):
    """An hourglass: three convolutions down, then three, each after a resize of its own options."""

    def __init__(self, *options: dict[str, object]) -> None:
        super().__init__()
        self.options = options
        self.down = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 18, stride=2), conv_bn(18, 20))
        self.convs = nn.ModuleList((conv_bn(20, 16), conv_bn(16, 14), nn.Conv2d(14, CLASSES, 3, padding=1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        for conv, options in zip(self.convs, self.options):
            x = conv(F.interpolate(x, **options))
        return x


def resize_nearest() -> nn.Module:
    """Nearest resizing by a whole factor, a broken factor and to a size that does not divide."""
    return Resized({"scale_factor": 2, "mode": "nearest"}, {"scale_factor": 1.5}, {"size": (29, 34), "mode": "nearest"})


def resize_nearest_exact() -> nn.Module:
    """Nearest-exact resizing up and down."""
    return Resized(
        {"scale_factor": 2.0, "mode": "nearest-exact"},
        {"size": (21, 13), "mode": "nearest-exact"},
        {"size": 32, "mode": "nearest-exact"},
    )


def resize_bilinear() -> nn.Module:
    """Bilinear resizing with half-pixel centres: a factor, a size up and a size down."""
    return Resized(
        {"scale_factor": 2, "mode": "bilinear", "align_corners": False},
        {"size": (23, 19), "mode": "bilinear", "align_corners": False},
        {"size": (17, 12), "mode": "bilinear"},
    )


def resize_aligned() -> nn.Module:
    """Bilinear resizing with aligned corners, among them to and from a single row."""
    return Resized(
        {"size": (1, 5), "mode": "bilinear", "align_corners": True},
        {"size": (9, 14), "mode": "bilinear", "align_corners": True},
        {"scale_factor": (2, 1.5), "mode": "bilinear", "align_corners": True},
    )


def resize_bicubic() -> nn.Module:
    """Bicubic resizing, half-pixel and aligned."""
    return Resized(
        {"scale_factor": 2, "mode": "bicubic", "align_corners": False},
        {"size": (11, 13), "mode": "bicubic", "align_corners": True},
        {"size": (24, 24), "mode": "bicubic"},
    )


def resize_area() -> nn.Module:
    """Area resizing down and up, which is adaptive average pooling."""
    return Resized(
        {"size": (16, 16), "mode": "area"}, {"scale_factor": 0.75, "mode": "area"}, {"size": (9, 7), "mode": "area"}
    )


def resize_antialias() -> nn.Module:
    """Antialiased bilinear and bicubic shrinking."""
    return Resized(
        {"scale_factor": 2, "mode": "bilinear"},
        {"size": (7, 9), "mode": "bilinear", "antialias": True},
        {"size": (5, 5), "mode": "bicubic", "antialias": True},
    )


class TransposedConvs(nn.Module):
    """Transposed convolutions: output padding, groups, dilation, a kernel that the stride does not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 18, stride=2))
        self.up1 = nn.ConvTranspose2d(18, 16, 3, stride=2, padding=1, output_padding=1)
        self.conv1 = conv_bn(16, 16)
        self.up2 = nn.ConvTranspose2d(16, 12, 4, stride=2, padding=1, groups=4, bias=False)
        self.up3 = nn.ConvTranspose2d(12, 10, 3, padding=2, dilation=2)
        self.conv2 = nn.Conv2d(10, CLASSES, 3, padding=1)
        self.up4 = nn.ConvTranspose2d(16, CLASSES, 5, stride=(2, 2), padding=2)

    def forward(self, x: Tensor) -> Tensor:
        low = self.conv1(F.relu(self.up1(self.down(x))))
        x = self.conv2(F.relu(self.up3(F.relu(self.up2(low)))))
        return x + self.up4(low, output_size=x.shape[-2:])


class Generator(nn.Module):
    """DCGAN: a vector projected to a map by a transposed convolution and grown to an image with tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(20, 24, 4, 1, 0, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(True),
            nn.ConvTranspose2d(24, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(16, 14, 3, padding=1, bias=False),
            nn.BatchNorm2d(14),
            nn.ReLU(True),
            nn.Conv2d(14, 12, 3, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(True),
            nn.ConvTranspose2d(12, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z.view(z.size(0), -1, 1, 1))


class SpatialTransformer(nn.Module):
    """Spatial transformer: an affine grid from a localisation net, `F.grid_sample` of the features."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.localization = nn.Sequential(conv_bn(12, 8, stride=2), conv_bn(8, 10, stride=2))
        self.fc_loc = nn.Linear(10, 6)
        self.conv1 = conv_bn(12, 16)
        self.conv2 = conv_bn(16, 20, stride=2)
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        theta = 0.1 * torch.tanh(self.fc_loc(self.localization(x).mean((2, 3)))).view(-1, 2, 3)
        theta = theta + torch.eye(2, 3, device=x.device)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        x = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        return self.head(self.conv2(self.conv1(x)))


class CoordConv(nn.Module):
    """CoordConv: coordinate channels made from `linspace` and `meshgrid`, expanded and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(5, 12, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 14, 3, padding=1)
        self.conv3 = nn.Conv2d(17, 18, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(18, 18, 3, padding=1)
        self.conv5 = nn.Conv2d(18, 21, 1)
        self.head = classifier(21)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(self._with_coordinates(x)))
        x = F.relu(self.conv2(x))
        x = self._with_coordinates(x)
        x = torch.cat([x, torch.sqrt((x[:, -1:] - 0.5) ** 2 + (x[:, -2:-1] - 0.5) ** 2)], dim=1)
        return self.head(self.conv5(F.relu(self.conv4(F.relu(self.conv3(x))))))

    @staticmethod
    def _with_coordinates(x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        rows, columns = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([rows, columns]).to(x).unsqueeze(0).expand(b, -1, -1, -1)
        return torch.cat([x, grid], dim=1)


class Wavelet(nn.Module):
    """Haar wavelets: four sub-bands from strided slices, convolved, and put back by slice assignment's inverse."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10, stride=2)
        self.mix = conv_bn(40, 40, groups=4)
        self.fuse = conv_bn(40, 32, kernel=1)
        self.refine = conv_bn(8, 16)
        self.last = conv_bn(16, 20, stride=2)
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x01, x02 = x[:, :, 0::2, :] / 2, x[:, :, 1::2, :] / 2
        x1, x2, x3, x4 = x01[:, :, :, 0::2], x02[:, :, :, 0::2], x01[:, :, :, 1::2], x02[:, :, :, 1::2]
        bands = (x1 + x2 + x3 + x4, -x1 - x2 + x3 + x4, -x1 + x2 - x3 + x4, x1 - x2 - x3 + x4)
        a, b, c, d = self.fuse(self.mix(torch.cat(bands, 1))).chunk(4, dim=1)
        n, channels, h, w = a.shape
        out = torch.zeros(n, channels, 2 * h, 2 * w, device=x.device)
        out[:, :, 0::2, 0::2] = a - b - c + d
        out[:, :, 1::2, 0::2] = a - b + c - d
        out[:, :, 0::2, 1::2] = a + b - c - d
        out[:, :, 1::2, 1::2] = a + b + c + d
        return self.head(self.last(self.refine(out)))


FAMILY = "resampling"
DEFINITIONS = (
    define("padding_modes", FAMILY, PaddingModes),
    define("padding_layers", FAMILY, PaddingLayers, ((2, 3, 30, 31),)),
    define("cropping", FAMILY, Cropping, ((2, 3, 36, 36),)),
    define("blur_pool", FAMILY, BlurNet),
    define("space_to_depth", FAMILY, SpaceToDepth, ((2, 3, 60, 52),)),
    define("super_resolution", FAMILY, SuperResolution, ((2, 3, 20, 18),), loss="mse"),
    define("pixel_shuffles", FAMILY, PixelShuffles),
    define("resize_nearest", FAMILY, resize_nearest),
    define("resize_nearest_exact", FAMILY, resize_nearest_exact, ((2, 3, 28, 32),)),
    define("resize_bilinear", FAMILY, resize_bilinear),
    define("resize_aligned", FAMILY, resize_aligned),
    define("resize_bicubic", FAMILY, resize_bicubic),
    define("resize_area", FAMILY, resize_area),
    define("resize_antialias", FAMILY, resize_antialias),
    define("transposed_convs", FAMILY, TransposedConvs),
    define("dcgan", FAMILY, Generator, ((3, 20),), loss="mse"),
    define("spatial_transformer", FAMILY, SpatialTransformer),
    define("coordconv", FAMILY, CoordConv, ((2, 3, 30, 36),)),
    define("wavelet", FAMILY, Wavelet),
)
