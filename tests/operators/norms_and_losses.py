"""Normalisations with everything they take, and losses as functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.operators.harness import IMAGE, between, case, image, layer

X2, X3 = (2, 6, 3, 5), (2, 4, 3)


def statistics(norm: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        norm.running_mean.normal_(generator=generator)
        norm.running_var.uniform_(0.5, 2.0, generator=generator)
        if norm.affine:
            norm.weight.uniform_(0.5, 2.0, generator=generator)
            norm.bias.normal_(generator=generator)
    return norm


class StandardisedConvolution(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
        return F.conv2d(x, weight.reshape(self.weight.shape), self.bias, padding=1)


class LayerNormOfImages(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


NORMS = [
    layer("batch_norm2d", lambda: statistics(nn.BatchNorm2d(6)), X2),
    layer("batch_norm2d_plain", lambda: statistics(nn.BatchNorm2d(6, affine=False)), X2),
    layer("batch_norm1d", lambda: statistics(nn.BatchNorm1d(4)), X3),
    layer("batch_norm1d_features", lambda: statistics(nn.BatchNorm1d(4)), (5, 4)),
    layer("batch_norm3d", lambda: statistics(nn.BatchNorm3d(4)), (2, 4, 2, 3, 2)),
    layer("batch_norm_of_batch", lambda: nn.BatchNorm2d(6, track_running_stats=False), X2),
    case("layer_norm", lambda x, w, b: F.layer_norm(x, (4,), w, b), (3, 5, 4), (4,), (4,)),
    case("layer_norm_axes", lambda x, w: F.layer_norm(x, (5, 4), w), (3, 5, 4), (5, 4)),
    case("layer_norm_plain", lambda x: F.layer_norm(x, (4,), eps=1e-2), (3, 5, 4)),
    case("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), X2, (6,), (6,)),
    case("group_norm_plain", lambda x: F.group_norm(x, 2), X2),
    case("group_norm_1d", lambda x, w, b: F.group_norm(x, 2, w, b), X3, (4,), (4,)),
    case("group_norm_features", lambda x, w, b: F.group_norm(x, 2, w, b), (3, 8), (8,), (8,)),
    case("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), X2, (6,), (6,)),
    case("instance_norm_plain", F.instance_norm, X2),
    case("instance_norm_1d", F.instance_norm, X3),
    layer("instance_norm_tracked", lambda: statistics(nn.InstanceNorm2d(6, affine=True, track_running_stats=True)), X2),
    case("local_response_norm", lambda x: F.local_response_norm(x, 3, alpha=0.1, beta=0.75, k=2), X2),
    case("local_response_norm_even", lambda x: F.local_response_norm(x, 4), X2),
    case("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), (3, 5, 4), (4,)),
    case("rms_norm_plain", lambda x: F.rms_norm(x, (5, 4), eps=1e-6), (3, 5, 4)),
    case("normalize", F.normalize, (3, 5, 4)),
    case("normalize_1", lambda x: F.normalize(x, p=1, dim=-1), (3, 5, 4)),
    case("weight_norm", lambda v, g: torch._weight_norm(v, g, 0), (4, 3, 2), (4, 1, 1)),
    case("renorm", lambda x: torch.renorm(x, 2, 0, 1.0), (4, 3)),
    layer("standardised_convolution", lambda: StandardisedConvolution(6, 4, 3), X2),
    layer("image_batch_norm", lambda: statistics(nn.BatchNorm2d(6)), IMAGE, is_image=True),
    layer("image_batch_norm_of_batch", lambda: nn.BatchNorm2d(6, track_running_stats=False), IMAGE, is_image=True),
    layer("image_group_norm", lambda: nn.GroupNorm(3, 6), IMAGE, is_image=True),
    layer("image_instance_norm", lambda: nn.InstanceNorm2d(6, affine=True), IMAGE, is_image=True),
    layer("image_layer_norm", lambda: nn.LayerNorm((6, 7, 9)), IMAGE, is_image=True),
    layer("image_layer_norm_channels", lambda: LayerNormOfImages(6), IMAGE, is_image=True),
    image("image_local_response_norm", lambda x: F.local_response_norm(x, 3)),
    image("image_normalize", F.normalize),
]

CLASSES, DENSE = torch.tensor([1, 0, 4, 2]), torch.arange(2 * 3 * 4).reshape(2, 3, 4) % 5
UNIT, ROWS = between(0.05, 0.95), (4, 5)
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])


def against(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """Both operands are differentiated."""
    return lambda x, y: function(x, y, **options)


LOSSES = [
    case("cross_entropy", lambda x: F.cross_entropy(x, CLASSES), ROWS),
    case("cross_entropy_smoothed", lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), ROWS),
    case("cross_entropy_weighted", lambda x: F.cross_entropy(x, CLASSES, torch.arange(1.0, 6)), ROWS),
    case("cross_entropy_ignoring", lambda x: F.cross_entropy(x, CLASSES, ignore_index=4, reduction="sum"), ROWS),
    case("cross_entropy_each", lambda x: F.cross_entropy(x, CLASSES, reduction="none"), ROWS),
    case("cross_entropy_soft", against(F.cross_entropy), ROWS, ROWS),
    case("cross_entropy_pixels", lambda x: F.cross_entropy(x, DENSE), (2, 5, 3, 4)),
    case("cross_entropy_pixels_smoothed", lambda x: F.cross_entropy(x, DENSE, label_smoothing=0.2), (2, 5, 3, 4)),
    case("cross_entropy_of_input", lambda x, i: F.cross_entropy(x, i), (6, 4), takes_indices=True),
    case("nll", lambda x: F.nll_loss(x.log_softmax(1), CLASSES), ROWS),
    case("nll_of_input", lambda x, i: F.nll_loss(x, i, reduction="sum"), (6, 4), takes_indices=True),
    case("bce", lambda x: F.binary_cross_entropy(x, (CLASSES[:, None] > 1).float().expand(ROWS)), ROWS, draw=UNIT),
    case("bce_with_logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), ROWS, ROWS),
    case(
        "bce_with_logits_weighted",
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(ROWS), pos_weight=torch.arange(5.0)),
        ROWS,
    ),
    case("mse", against(F.mse_loss), ROWS, ROWS),
    case("mse_sum", against(F.mse_loss, reduction="sum"), ROWS, ROWS),
    case("l1", against(F.l1_loss), ROWS, ROWS),
    case("smooth_l1", against(F.smooth_l1_loss, beta=0.5), ROWS, ROWS),
    case("smooth_l1_beta_0", against(F.smooth_l1_loss, beta=0.0), ROWS, ROWS),
    case("huber", against(F.huber_loss, delta=0.6), ROWS, ROWS),
    case("kl_div", lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), ROWS, ROWS),
    case("kl_div_log", lambda x, y: F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True), ROWS, ROWS),
    case("cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, SIGNS, margin=0.1), ROWS, ROWS),
    case("margin_ranking", lambda x, y: F.margin_ranking_loss(x, y, SIGNS[:, None], margin=0.2), ROWS, ROWS),
    case("hinge_embedding", lambda x: F.hinge_embedding_loss(x, SIGNS[:, None].expand(ROWS)), ROWS),
    case("soft_margin", lambda x: F.soft_margin_loss(x, SIGNS[:, None].expand(ROWS)), ROWS),
    case("triplet", F.triplet_margin_loss, ROWS, ROWS, ROWS),
    case("poisson", lambda x: F.poisson_nll_loss(x, CLASSES[:, None].float()), ROWS),
    case(
        "multilabel_soft_margin",
        lambda x: F.multilabel_soft_margin_loss(x, (torch.arange(20).reshape(ROWS) % 3 == 0).float()),
        ROWS,
    ),
    case("multi_margin", lambda x: F.multi_margin_loss(x, CLASSES), ROWS),
    case(
        "dice", lambda x: 1 - 2 * (x.sigmoid() * (DENSE % 2)).sum() / (x.sigmoid().sum() + (DENSE % 2).sum()), (2, 3, 4)
    ),
    case("focal", lambda x: ((1 - x.softmax(1)).pow(2) * -x.log_softmax(1)).gather(1, CLASSES[:, None]).mean(), ROWS),
    case("contrastive", lambda x: F.cross_entropy(F.normalize(x) @ F.normalize(x).T / 0.5, torch.arange(4)), ROWS),
    case("total_variation", lambda x: x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean(), X2),
]
THEMES = {"norms": NORMS, "losses": LOSSES}
