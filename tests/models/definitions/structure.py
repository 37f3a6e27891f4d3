"""What lies around the layers: shared weights, other dimensions, unrolled loops, distances, arithmetic."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class SharedModule(nn.Module):
    """One convolution module applied three times, each time with a batch norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 12))
        self.before = conv_bn(12, 16, stride=2)
        self.shared = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.last = conv_bn(16, 24, kernel=1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(self.stem(x))
        for norm in self.norms:
            x = F.relu(norm(self.shared(x)))
        return self.head(self.last(x))


class SharedHead(nn.Module):
    """RetinaNet: the same tower and predictors over every pyramid level, outputs flattened and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.c3 = conv_bn(12, 16, stride=2)
        self.c4 = conv_bn(16, 16, stride=2)
        self.conv = nn.Sequential(
            nn.Conv2d(16, 14, 3, padding=1), nn.ReLU(), nn.Conv2d(14, 14, 3, padding=1), nn.ReLU()
        )
        self.cls_logits = nn.Conv2d(14, 2 * CLASSES, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        c3 = self.c3(self.stem(x))
        logits = []
        for level in (c3, self.c4(c3)):
            out = self.cls_logits(self.conv(level))
            n, _, h, w = out.shape
            logits.append(out.view(n, -1, CLASSES, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, CLASSES))
        return torch.cat(logits, dim=1)


class TiedParameter(nn.Module):
    """Two convolution modules of different dilation tied to one Parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=2), conv_bn(16, 16))
        self.near = nn.Conv2d(16, 14, 3, padding=1)
        self.far = nn.Conv2d(16, 14, 3, padding=2, dilation=2)
        self.far.weight = self.near.weight
        self.last = conv_bn(28, 24, kernel=1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([F.relu(self.near(x)), F.relu(self.far(x))], 1)
        return self.head(self.last(x))


class TiedAutoencoder(nn.Module):
    """A decoder that transposes the encoder's own kernels: `F.conv_transpose2d(x, self.conv.weight)`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2d(12, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 20, 4, stride=2, padding=1)
        self.conv4 = nn.Conv2d(20, 20, 3, padding=1)
        self.conv5 = nn.Conv2d(20, 20, 1)
        self.bias3, self.bias2 = nn.Parameter(torch.randn(16) * 0.1), nn.Parameter(torch.randn(12) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(x))))))
        x = F.relu(self.conv5(F.relu(self.conv4(x))))
        x = F.relu(F.conv_transpose2d(x, self.conv3.weight * 0.5, self.bias3, stride=2, padding=1))
        x = F.relu(F.conv_transpose2d(x, self.conv2.weight, self.bias2, padding=1))
        return F.conv_transpose2d(x, self.conv1.weight, stride=2, padding=1)


class ConvOneDimensional(nn.Module):
    """Conv1d inside: the map's columns averaged to a sequence, 1-D convolutions and a pool along it (CRNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=(2, 1)), conv_bn(16, 20))
        self.conv1 = nn.Conv1d(20, 20, 3, padding=1)
        self.bn1 = nn.BatchNorm1d(20)
        self.conv2 = nn.Conv1d(20, 24, 5, padding=4, dilation=2)
        self.conv3 = nn.Conv1d(24, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).mean(dim=2)
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.conv2(x))
        return self.conv3(x)


class ConvThreeDimensional(nn.Module):
    """Conv3d inside: features of a clip stacked on a time axis, 3-D convolution and pool, back to maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 10, stride=2)
        self.conv3d = nn.Conv3d(10, 12, (3, 3, 3), padding=(0, 1, 1), bias=False)
        self.bn3d = nn.BatchNorm3d(12)
        self.temporal = nn.Conv3d(12, 14, (2, 1, 1))
        self.conv1 = conv_bn(14, 18, stride=2)
        self.conv2 = conv_bn(18, 20)
        self.head = classifier(20)

    def forward(self, clip: Tensor) -> Tensor:
        n, t, c, h, w = clip.shape
        x = self.stem(clip.view(n * t, c, h, w))
        x = x.view(n, t, *x.shape[1:]).transpose(1, 2)  # [N, C, T, H, W]
        x = F.relu(self.bn3d(self.conv3d(x)))
        x = self.temporal(F.avg_pool3d(x, (1, 2, 2))).squeeze(2)
        return self.head(self.conv2(self.conv1(F.relu(x))))


class BiasFree(nn.Module):
    """No bias anywhere: a denoiser that scales with its input, and its residual learning of the noise (DnCNN)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 12, 12, 14, 14, 12)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths))
        self.last = nn.Conv2d(12, 3, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        noise = x
        for conv in self.convs:
            noise = F.relu(conv(noise))
        return x - self.last(noise)


class Dropouts(nn.Module):
    """Dropout, Dropout2d, AlphaDropout and FeatureAlphaDropout, all of them the identity in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            conv_bn(3, 12, stride=2),
            nn.Dropout2d(0.2),
            conv_bn(12, 16, act=nn.SELU),
            nn.AlphaDropout(0.1),
            conv_bn(16, 18, stride=2),
            nn.Dropout(0.3, inplace=True),
            conv_bn(18, 18),
            nn.FeatureAlphaDropout(0.1),
            conv_bn(18, 20),
        )
        self.fc = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x).mean((2, 3))
        return self.fc(F.dropout(x, p=0.4, training=self.training))


class CosineClassifier(nn.Module):
    """Cosine classifier: features and class weights normalised, a learnt scale, `F.linear`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 12, stride=2),
            conv_bn(12, 16),
            conv_bn(16, 20, stride=2),
            conv_bn(20, 20),
            conv_bn(20, 24, act=None),
        )
        self.weight = nn.Parameter(torch.randn(CLASSES, 24))
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1).squeeze(3).squeeze(2)
        return self.scale * F.linear(F.normalize(x, p=2, dim=1), F.normalize(self.weight, p=2, dim=1))


class Prototypes(nn.Module):
    """Prototype distances: squared distances of a feature to learnt prototypes by expansion of the square."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 12, stride=2),
            conv_bn(12, 16),
            conv_bn(16, 20, stride=2),
            conv_bn(20, 20),
            conv_bn(20, 16, act=None),
        )
        self.prototypes = nn.Parameter(torch.randn(CLASSES, 16) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean((2, 3))
        distances = x.pow(2).sum(1, keepdim=True) + self.prototypes.pow(2).sum(1) - 2 * x @ self.prototypes.t()
        return torch.log((distances + 1) / (distances + 1e-2)) * 3


class Arithmetic(nn.Module):
    """Pointwise arithmetic: log, exp, clamp, powers, abs, square roots, reciprocals, where, minimum, atan."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, stride=2)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in ((12, 14), (14, 14), (14, 16), (16, 18)))
        self.last = nn.Conv2d(18, 20, 1)
        self.head = classifier(20)

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs[0](self.stem(x))
        x = torch.log1p(torch.abs(x)) * torch.sign(x) + torch.exp(-x.square())
        x = self.convs[1](x).clamp(-2.0, 2.5)
        x = x.pow(3) / (1 + x**2).sqrt() - torch.rsqrt(x * x + 0.5)
        x = self.convs[2](x)
        x = torch.where(x > 0, torch.log(x.clamp(min=1e-3) + 1), 0.2 * torch.expm1(x.clamp(max=0.0)))
        x = self.convs[3](x)
        x = torch.minimum(x, 1.5 - x) + torch.reciprocal(1 + x.abs()) + torch.atan(x) - torch.erf(0.5 * x)
        return self.head(self.last(1.0 / (1.0 + torch.exp(-x)) + x.cos() * 0.3))


class RecurrentConv(nn.Module):
    """ConvLSTM: a cell unrolled over the frames of a clip, gates by chunk, states from zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv_bn(3, 10, stride=2), conv_bn(10, 12, stride=2))
        self.cell = nn.Conv2d(24, 48, 3, padding=1)
        self.conv1 = conv_bn(12, 16)
        self.conv2 = conv_bn(16, 16, groups=16)
        self.conv3 = conv_bn(16, 20, kernel=1)
        self.head = classifier(20)

    def forward(self, clip: Tensor) -> Tensor:
        hidden = cell = torch.zeros(clip.shape[0], 12, clip.shape[3] // 4, clip.shape[4] // 4, device=clip.device)
        for frame in clip.unbind(dim=1):
            gates = self.cell(torch.cat([self.encoder(frame), hidden], dim=1))
            i, f, o, g = gates.chunk(4, dim=1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.head(self.conv3(self.conv2(self.conv1(hidden))))


FAMILY = "structure"
DEFINITIONS = (
    define("shared_module", FAMILY, SharedModule),
    define("shared_head", FAMILY, SharedHead, loss="mse"),
    define("tied_parameter", FAMILY, TiedParameter),
    define("tied_autoencoder", FAMILY, TiedAutoencoder, loss="mse"),
    define("conv1d_inside", FAMILY, ConvOneDimensional, ((2, 3, 24, 40),)),
    define("conv3d_inside", FAMILY, ConvThreeDimensional, ((2, 4, 3, 24, 24),)),
    define("bias_free", FAMILY, BiasFree, ((2, 3, 21, 27),), loss="mse"),
    define("dropouts", FAMILY, Dropouts),
    define("cosine_classifier", FAMILY, CosineClassifier),
    define("prototypes", FAMILY, Prototypes),
    define("arithmetic", FAMILY, Arithmetic),
    define("conv_lstm", FAMILY, RecurrentConv, ((2, 3, 3, 32, 32),)),
)
