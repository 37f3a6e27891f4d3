"""Convolutions of every rank, direction and option; their products' kin: linear layers, matrix products, attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.operators.harness import case, image, layer

X1, X2, X3 = (2, 4, 11), (2, 4, 9, 8), (2, 4, 5, 6, 7)

PLAIN = [
    layer("conv2d", lambda: nn.Conv2d(4, 6, 3, padding=1), X2),
    layer("conv2d_no_bias", lambda: nn.Conv2d(4, 6, 3, bias=False), X2),
    layer("conv2d_pointwise", lambda: nn.Conv2d(4, 16, 1), X2),
    layer("conv2d_strided_pointwise", lambda: nn.Conv2d(4, 6, 1, stride=2), X2),
    layer("conv2d_oblong", lambda: nn.Conv2d(4, 6, (1, 5), stride=(1, 2), padding=(0, 2)), X2),
    layer("conv2d_even", lambda: nn.Conv2d(4, 6, 4, stride=3, padding=2), X2),
    layer("conv2d_patchify", lambda: nn.Conv2d(4, 6, 4, stride=4), (2, 4, 8, 12)),
    layer("conv2d_dilated", lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=2), X2),
    layer("conv2d_dilated_strided", lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=(2, 1), padding=(2, 1)), X2),
    layer("conv2d_grouped", lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), X2),
    layer("conv2d_depthwise", lambda: nn.Conv2d(4, 4, 5, groups=4, padding=2, stride=2), X2),
    layer("conv2d_multiplier", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), X2),
    layer("conv2d_same", lambda: nn.Conv2d(4, 6, (4, 3), padding="same"), X2),
    layer("conv2d_same_dilated", lambda: nn.Conv2d(4, 6, 2, padding="same", dilation=3), X2),
    layer("conv2d_valid", lambda: nn.Conv2d(4, 6, 3, padding="valid"), X2),
    layer("conv2d_wide_padding", lambda: nn.Conv2d(4, 6, 3, padding=4), X2),
    layer("conv2d_reflect", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), X2),
    layer("conv2d_replicate", lambda: nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="replicate"), X2),
    layer("conv2d_circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), X2),
    layer("conv2d_batchless", lambda: nn.Conv2d(4, 6, 3), (4, 7, 6)),
    case("conv2d_of_computed_weight", lambda x, w: F.conv2d(x, w.tanh(), padding=1), X2, (6, 4, 3, 3)),
    case("conv2d_blur", lambda x: F.conv2d(x, torch.ones(4, 1, 3, 3) / 9, stride=2, groups=4), X2),
    case(
        "conv2d_per_sample",
        lambda x, w: F.conv2d(x.reshape(1, 8, 9, 8), w.reshape(12, 4, 3, 3), groups=2),
        X2,
        (2, 6, 4, 3, 3),
    ),
]
OTHERS = [
    layer("conv_transpose2d", lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), X2),
    layer("conv_transpose2d_even", lambda: nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, bias=False), X2),
    layer("conv_transpose2d_more", lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1), X2),
    layer("conv_transpose2d_grouped", lambda: nn.ConvTranspose2d(4, 6, 3, 2, groups=2, dilation=2), X2),
    layer("conv_transpose2d_depthwise", lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4), X2),
    layer("conv_transpose2d_oblong", lambda: nn.ConvTranspose2d(4, 6, (3, 2), (1, 3), (1, 0)), X2),
    layer("conv1d", lambda: nn.Conv1d(4, 6, 3, padding=1), X1),
    layer("conv1d_strided", lambda: nn.Conv1d(4, 6, 5, stride=2, padding=2, dilation=2, bias=False), X1),
    layer("conv1d_grouped", lambda: nn.Conv1d(4, 8, 3, groups=2, padding="same"), X1),
    layer("conv1d_depthwise", lambda: nn.Conv1d(4, 4, 3, groups=4), X1),
    layer("conv1d_eca", lambda: nn.Conv1d(1, 1, 3, padding=1, bias=False), (2, 1, 8)),
    layer("conv_transpose1d", lambda: nn.ConvTranspose1d(4, 6, 4, 2, 1, output_padding=1), X1),
    layer("conv3d", lambda: nn.Conv3d(4, 6, 3, padding=1), X3),
    layer("conv3d_strided", lambda: nn.Conv3d(4, 6, (3, 2, 1), stride=(1, 2, 2), padding=(2, 0, 0), bias=False), X3),
    layer("conv3d_dilated_grouped", lambda: nn.Conv3d(4, 6, 2, dilation=(2, 1, 2), groups=2), X3),
    layer("conv3d_depthwise_same", lambda: nn.Conv3d(4, 4, 3, groups=4, padding="same"), X3),
    layer("conv_transpose3d", lambda: nn.ConvTranspose3d(4, 6, 2, stride=2), (1, 4, 2, 3, 4)),
    layer("conv_transpose3d_padded", lambda: nn.ConvTranspose3d(4, 2, 3, 2, 1, output_padding=1), (1, 4, 2, 3, 4)),
    case("unfold", lambda x: F.unfold(x, 3, padding=1, stride=2), X2),
    case("unfold_dilated", lambda x: F.unfold(x, (2, 3), dilation=(2, 1)), X2),
    case("fold", lambda x: F.fold(x, (8, 6), 2, stride=2), (2, 12, 12)),
    case("fold_overlapping", lambda x: F.fold(x, (5, 6), 3, padding=1), (2, 18, 30)),
    image("image_unfold_im2col", lambda x: F.unfold(x, 3, padding=1)),
    image("image_fold", lambda x: F.fold(F.unfold(x, 3, padding=1) * 2, (7, 9), 3, padding=1)),
    image(
        "image_involution", lambda x: (F.unfold(x, 3, padding=1).view(2, 6, 9, 63) * x.flatten(2)[:, :, None]).sum(2)
    ),
    layer("conv_weight_norm", lambda: weight_norm(nn.Conv2d(4, 6, 3)), X2),
    layer("conv_spectral_norm", lambda: spectral_norm(nn.Conv2d(4, 6, 3)).eval(), X2),
]


def attention_mask(rows: int, columns: int) -> Tensor:
    return torch.arange(rows)[:, None] + 1 >= torch.arange(columns)


class SelfAttention(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class WeighedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)

    def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        return self.attention(x, memory, memory, attn_mask=~attention_mask(3, 5))


Q = (2, 3, 4, 6)
PRODUCTS = [
    layer("linear", lambda: nn.Linear(4, 6), (3, 4)),
    layer("linear_no_bias", lambda: nn.Linear(4, 6, bias=False), (3, 4)),
    layer("linear_3d", lambda: nn.Linear(4, 6), (3, 5, 4)),
    layer("linear_4d", lambda: nn.Linear(4, 6, bias=False), (2, 3, 5, 4)),
    layer("linear_vector", lambda: nn.Linear(4, 6), (4,)),
    layer("bilinear_layer", lambda: nn.Bilinear(4, 5, 3), (2, 4), (2, 5)),
    case("mm", torch.mm, (3, 4), (4, 5)),
    case("mv", torch.mv, (3, 4), (4,)),
    case("dot", torch.dot, (4,), (4,)),
    case("outer", torch.outer, (3,), (4,)),
    case("bmm", torch.bmm, (3, 4, 5), (3, 5, 2)),
    case("bmm_transposed", lambda x, y: x.mT @ y, (3, 5, 4), (3, 5, 2)),
    case("matmul_broadcast", torch.matmul, (2, 3, 4, 5), (5, 6)),
    case("matmul_batches", torch.matmul, (2, 1, 4, 5), (3, 5, 6)),
    case("matmul_vector", torch.matmul, (2, 4, 5), (5,)),
    case("addmm", lambda a, x, y: torch.addmm(a, x, y, beta=0.5, alpha=2), (5,), (3, 4), (4, 5)),
    case("addmv", torch.addmv, (3,), (3, 4), (4,)),
    case("addbmm", torch.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    case("baddbmm", lambda a, x, y: torch.baddbmm(a, x, y, beta=0.7, alpha=0.3), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    case("chain", lambda x, y, z: torch.linalg.multi_dot([x, y, z]), (3, 4), (4, 5), (5, 2)),
    case("einsum_attention", lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), Q, (2, 3, 5, 6)),
    case("einsum_gram", lambda x: torch.einsum("bchw,bdhw->bcd", x, x), (2, 4, 3, 5)),
    case("einsum_outer", lambda x, y: torch.einsum("i,jk->kij", x, y), (3,), (4, 5)),
    case("einsum_graph", lambda x, a: torch.einsum("nctv,vw->nctw", x, a), (2, 3, 4, 5), (5, 5)),
    case("einsum_diagonal", lambda x: torch.einsum("bii->bi", x), (3, 4, 4)),
    case("tensordot", lambda x, y: torch.tensordot(x, y, dims=([1, 2], [0, 2])), (3, 4, 5), (4, 2, 5)),
    case("inner", torch.inner, (3, 4), (5, 4)),
    case("cosine_similarity", F.cosine_similarity, (3, 4, 5), (3, 4, 5)),
    case("pairwise_distance", F.pairwise_distance, (3, 4), (3, 4)),
    case("cdist", lambda x, y: torch.cdist(x, y), (3, 4), (5, 4)),
    case("cross", lambda x, y: torch.linalg.cross(x, y), (4, 3), (4, 3)),
    case("bilinear_pool", lambda x: F.normalize((x @ x.mT).flatten(1).abs().add(1e-3).sqrt()), (2, 3, 4)),
    image("image_gram", lambda x: x.flatten(2) @ x.flatten(2).mT),
    image("image_attention", lambda x: (x.flatten(2) @ x.flatten(2).mT.softmax(1)).softmax(-1)),
    layer("image_linear_channels", lambda: ChannelsLastLinear(), (2, 6, 7, 9), is_image=True),
]


class ChannelsLastLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


ATTENTION = [
    case("attention", F.scaled_dot_product_attention, Q, Q, Q),
    case("attention_cross", F.scaled_dot_product_attention, Q, (2, 3, 5, 6), (2, 3, 5, 2)),
    case("attention_causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), Q, Q, Q),
    case("attention_mask", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attention_mask(4, 4)), Q, Q, Q),
    case("attention_bias", lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b), Q, Q, Q, (3, 4, 4)),
    case("attention_scale", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.2), Q, Q, Q),
    case("attention_3d", F.scaled_dot_product_attention, (3, 4, 6), (3, 4, 6), (3, 4, 6)),
    case(
        "attention_gqa",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (2, 4, 3, 6),
        (2, 2, 5, 6),
        (2, 2, 5, 6),
    ),
    layer("multihead_attention", SelfAttention, (2, 5, 8)),
    layer("multihead_attention_sequence_first", lambda: SelfAttention(False), (5, 2, 8)),
    layer("multihead_attention_weights", WeighedAttention, (2, 3, 8), (2, 5, 6)),
    layer(
        "transformer_layer",
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True).train(),
        (2, 5, 8),
    ),
]
THEMES = {"convolutions": PLAIN, "other_convolutions": OTHERS, "products": PRODUCTS, "attention": ATTENTION}
