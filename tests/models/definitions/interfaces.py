"""What goes in and comes out: several inputs, tuples, dictionaries, and buffers that a step changes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


class ImageAndVector(nn.Module):
    """FiLM: a vector of features scales and shifts the map's channels, and joins the pooled head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16))
        self.film = nn.Linear(7, 32)
        self.conv1 = conv_bn(16, 16, act=None)
        self.conv2 = conv_bn(16, 20, stride=2)
        self.conv3 = conv_bn(20, 24)
        self.fc = nn.Linear(24 + 7, CLASSES)

    def forward(self, image: Tensor, features: Tensor) -> Tensor:
        gamma, beta = self.film(features).chunk(2, dim=1)
        x = self.conv1(self.stem(image))
        x = F.relu((1 + 0.5 * gamma[:, :, None, None]) * x + beta[:, :, None, None])
        x = self.conv3(self.conv2(x)).mean([2, 3])
        return self.fc(torch.cat([x, features], dim=1))


class Siamese(nn.Module):
    """Two images through one tower, compared by difference, product and cosine."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            conv_bn(3, 12, stride=2), conv_bn(12, 16), conv_bn(16, 20, stride=2), conv_bn(20, 20), conv_bn(20, 24)
        )
        self.fc = nn.Linear(49, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a, b = self.tower(left).mean((2, 3)), self.tower(right).mean((2, 3))
        cosine = F.cosine_similarity(a, b, dim=1).unsqueeze(1)
        return self.fc(torch.cat([torch.abs(a - b), a * b, cosine], dim=1))


class Correlation(nn.Module):
    """FlowNet: features of two images batched together, a cost volume of shifted products, a flow map."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 14, stride=2))
        self.conv_redir = nn.Conv2d(14, 8, 1)
        self.conv1 = nn.Conv2d(17, 18, 3, padding=1)
        self.conv2 = nn.Conv2d(18, 14, 3, padding=1)
        self.predict_flow = nn.Conv2d(14, 2, 3, padding=1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = self.features(torch.cat([first, second], dim=0)).split(first.shape[0])
        padded = F.pad(b, (1, 1, 1, 1))
        h, w = a.shape[2:]
        volume = [(a * padded[:, :, i : i + h, j : j + w]).mean(1, keepdim=True) for i in range(3) for j in range(3)]
        x = torch.cat([F.leaky_relu(torch.cat(volume, 1), 0.1), self.conv_redir(a)], 1)
        x = F.leaky_relu(self.conv2(F.leaky_relu(self.conv1(x), 0.1)), 0.1)
        return F.interpolate(self.predict_flow(x), scale_factor=4, mode="bilinear", align_corners=False) * 4.0


class MultiTask(nn.Module):
    """A tuple of outputs: classes, a box through a sigmoid, and a map of pixel classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16), conv_bn(16, 20, stride=2))
        self.neck = conv_bn(20, 20)
        self.mask = nn.Sequential(conv_bn(20, 14), nn.Conv2d(14, CLASSES, 1))
        self.classes = nn.Linear(20, CLASSES)
        self.box = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.neck(self.backbone(x))
        mask = self.mask(x)
        pooled = x.mean((2, 3))
        return self.classes(pooled), torch.sigmoid(self.box(pooled)), mask


class NestedOutputs(nn.Module):
    """Deep supervision: a dict that holds the logits, and a list of earlier heads and a tuple of features."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            (conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=2), conv_bn(16, 20), conv_bn(20, 24))
        )
        self.heads = nn.ModuleList(classifier(channels) for channels in (12, 16, 20))
        self.fuse = nn.Conv2d(24, 24, 1)
        self.final = classifier(24)

    def forward(self, x: Tensor) -> dict[str, object]:
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        logits = self.final(F.relu(self.fuse(x)))
        side = [head(feature) for head, feature in zip(self.heads, features)]
        return {"logits": logits, "aux": {"side": side, "embedding": (x.amax((2, 3)), x.mean((2, 3)))}}


class Variational(nn.Module):
    """A variational encoder in eval mode: mean and log variance, the mean decoded, all three returned."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=2))
        self.fc_mu, self.fc_var = nn.Linear(16 * 64, 10), nn.Linear(16 * 64, 10)
        self.decoder_input = nn.Linear(10, 16 * 64)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 12, 3, stride=2, padding=1, output_padding=1),
            nn.LeakyReLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(12, 12, 3, padding=1),
            nn.LeakyReLU(),
            nn.Conv2d(12, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.flatten(self.encoder(x), start_dim=1)
        mu, log_var = self.fc_mu(x), self.fc_var(x)
        z = mu + torch.exp(0.5 * log_var) * torch.randn_like(mu) if self.training else mu
        x = self.decoder_input(z).view(-1, 16, 8, 8)
        return torch.sigmoid(self.decoder(x)), mu, log_var


class MovingCentre(nn.Module):
    """Own buffers the step updates: a moving mean of the features subtracted, and an integer count of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 12, stride=2), conv_bn(12, 16), conv_bn(16, 20, stride=2), conv_bn(20, 20), conv_bn(20, 24)
        )
        self.register_buffer("center", torch.zeros(1, 24))
        self.register_buffer("calls", torch.tensor(0))
        self.fc = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean((2, 3))
        self.calls += 1
        self.center = self.center * 0.9 + x.detach().mean(dim=0, keepdim=True) * 0.1
        return self.fc(x - self.center)


class InputNormalised(nn.Module):
    """The input normalised by buffers inside the model, and a learnt scalar temperature on the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=3), nn.ReLU(), nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.more = nn.Sequential(conv_bn(16, 16), conv_bn(16, 20, stride=2), conv_bn(20, 24, kernel=1))
        self.fc = nn.Linear(24, CLASSES)
        self.logit_scale = nn.Parameter(torch.tensor(0.4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.more(self.features((x - self.mean) / self.std))
        return self.fc(x.mean((2, 3))) * self.logit_scale.exp()


FAMILY = "interfaces"
DEFINITIONS = (
    define("image_and_vector", FAMILY, ImageAndVector, ((3, 3, 32, 32), (3, 7))),
    define("siamese", FAMILY, Siamese, ((2, 3, 30, 30), (2, 3, 30, 30))),
    define("correlation", FAMILY, Correlation, ((2, 3, 32, 40), (2, 3, 32, 40)), loss="mse"),
    define("multi_task", FAMILY, MultiTask),
    define("nested_outputs", FAMILY, NestedOutputs),
    define("variational", FAMILY, Variational, loss="mse"),
    define("moving_centre", FAMILY, MovingCentre),
    define("input_normalised", FAMILY, InputNormalised, ((2, 3, 41, 35),)),
)
