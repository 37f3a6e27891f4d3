"""Convolutions beside self-attention: windows, shifts, tokens, relative positions, and attention that pools."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.definitions.blocks import CLASSES, classifier, conv_bn
from tests.models.definitions.definition import define


def _residual_tail(channels: int) -> nn.ModuleList:
    """Two convolutions after the attention, so that its gradient path is one that training meets."""
    return nn.ModuleList((conv_bn(channels, channels), conv_bn(channels, channels + 8, kernel=1)))


class BottleneckTransformer(nn.Module):
    """BoTNet: softmax attention over the pixels of a map by matmul, an absolute position term added to the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=2))
        self.qkv = nn.Conv2d(16, 48, 1, bias=False)
        self.height = nn.Parameter(torch.randn(1, 2, 8, 1, 8) * 0.3)
        self.width = nn.Parameter(torch.randn(1, 2, 8, 8, 1) * 0.3)
        self.tail = _residual_tail(16)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        q, k, v = torch.chunk(self.qkv(x), 3, dim=1)
        q, k, v = (t.reshape(b, 2, c // 2, h * w) for t in (q, k, v))
        position = (self.height + self.width).view(1, 2, c // 2, -1).permute(0, 1, 3, 2)
        logits = torch.matmul(q.permute(0, 1, 3, 2), k) + torch.matmul(position, q)
        attn = F.softmax(logits * (c // 2) ** -0.5, dim=-1)
        out = torch.matmul(v, attn.permute(0, 1, 3, 2)).view(b, c, h, w)
        for layer in self.tail:
            out = layer(out)
        return self.head(out)


class RelativePositionBias(nn.Module):
    """A learnt table gathered by the offset of two positions in a window."""

    def __init__(self, window: int, heads: int) -> None:
        super().__init__()
        self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.5)
        coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        offsets = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("relative_position_index", offsets[..., 0] * (2 * window - 1) + offsets[..., 1])

    def forward(self) -> Tensor:
        size = self.relative_position_index.shape[0]
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        return bias.view(size, size, -1).permute(2, 0, 1).contiguous().unsqueeze(0)


class WindowAttention(nn.Module):
    def __init__(self, dim: int, window: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.position = RelativePositionBias(window, heads)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        attn = (attn + self.position()).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


def window_partition(x: Tensor, window: int) -> Tensor:
    b, h, w, c = x.shape
    x = x.view(b, h // window, window, w // window, window, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window * window, c)


def window_reverse(windows: Tensor, window: int, h: int, w: int) -> Tensor:
    c = windows.shape[-1]
    x = windows.view(-1, h // window, w // window, window, window, c)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, h, w, c)


class MaxViT(nn.Module):
    """MaxViT: a convolutional block, then attention within windows and within a grid, biased by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 12, act=nn.GELU, stride=2)
        self.conv1_1x1 = conv_bn(12, 24, kernel=1, act=nn.GELU)
        self.conv2_kxk = conv_bn(24, 24, act=nn.GELU, stride=2, groups=24)
        self.conv3_1x1 = nn.Conv2d(24, 16, 1)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attn_block = WindowAttention(16, 4, 2)
        self.attn_grid = WindowAttention(16, 4, 2)
        self.last = conv_bn(16, 24, act=nn.GELU)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv3_1x1(self.conv2_kxk(self.conv1_1x1(self.stem(x))))
        x = x.permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        x = x + window_reverse(self.attn_block(window_partition(self.norm1(x), 4)), 4, h, w)
        grid = self.norm2(x).view(b, 4, h // 4, 4, w // 4, c).permute(0, 2, 4, 1, 3, 5).contiguous().view(-1, 16, c)
        grid = self.attn_grid(grid).view(b, h // 4, w // 4, 4, 4, c).permute(0, 3, 1, 4, 2, 5).contiguous()
        x = x + grid.view(b, h, w, c)
        return self.head(self.last(x.permute(0, 3, 1, 2)))


class ShiftedWindows(nn.Module):
    """Swin between convolutions: `torch.roll`, attention masked where the roll joined strangers, roll back."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Sequential(nn.Conv2d(3, 12, 2, stride=2), nn.BatchNorm2d(12), nn.ReLU())
        self.local = nn.Sequential(conv_bn(12, 12), conv_bn(12, 16, stride=2))
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.proj = nn.Linear(16, 16)
        self.tail = _residual_tail(16)
        self.head = classifier(24)
        regions = torch.zeros(1, 8, 8, 1)
        spans = (slice(0, -4), slice(-4, -2), slice(-2, None))
        for number, (rows, columns) in enumerate(itertools.product(spans, spans)):
            regions[:, rows, columns, :] = number
        windows = window_partition(regions, 4).squeeze(-1)
        mask = windows.unsqueeze(1) - windows.unsqueeze(2)
        self.register_buffer("attn_mask", mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.local(self.patch_embed(x)).permute(0, 2, 3, 1)
        _, h, w, _ = x.shape
        shifted = torch.roll(self.norm(x), shifts=(-2, -2), dims=(1, 2))
        out = self._attend(window_partition(shifted, 4))
        x = x + torch.roll(window_reverse(out, 4, h, w), shifts=(2, 2), dims=(1, 2))
        x = x.permute(0, 3, 1, 2).contiguous()
        for layer in self.tail:
            x = layer(x)
        return self.head(x)

    def _attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        attn = q * (c // 2) ** -0.5 @ k.transpose(-2, -1)
        windows = self.attn_mask.shape[0]
        attn = attn.view(b // windows, windows, 2, n, n) + self.attn_mask.unsqueeze(1).unsqueeze(0)
        attn = attn.view(-1, 2, n, n).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(b, n, c))


class MobileViT(nn.Module):
    """MobileViT: the map unfolded to patches by reshape, a transformer across them, folded back and joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, act=nn.SiLU, stride=2), conv_bn(12, 14, act=nn.SiLU, stride=2))
        self.conv_kxk = conv_bn(14, 14, act=nn.SiLU)
        self.conv_1x1 = nn.Conv2d(14, 16, 1, bias=False)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
        self.conv_proj = conv_bn(16, 14, kernel=1, act=nn.SiLU)
        self.conv_fusion = conv_bn(28, 14, act=nn.SiLU)
        self.head = classifier(14)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x = self.stem(x)
        x = self.conv_1x1(self.conv_kxk(x))
        b, c, h, w = x.shape
        rows, columns = h // 2, w // 2
        x = x.reshape(b * c * rows, 2, columns, 2).transpose(1, 2)
        x = x.reshape(b, c, rows * columns, 4).transpose(1, 3).reshape(b * 4, rows * columns, c)
        x = x + self._attend(self.norm1(x))
        x = self.norm(x + self.mlp(self.norm2(x)))
        x = x.contiguous().view(b, 4, rows * columns, -1).transpose(1, 3)
        x = x.reshape(b * c * rows, columns, 2, 2).transpose(1, 2).reshape(b, c, h, w)
        x = self.conv_fusion(torch.cat((shortcut, self.conv_proj(x)), dim=1))
        return self.head(x)

    def _attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, c))


class MultiheadHybrid(nn.Module):
    """CNN features as tokens: a class token, position embeddings resized bicubically, `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(conv_bn(3, 10, stride=2), conv_bn(10, 14), conv_bn(14, 18, stride=2))
        self.conv_proj = nn.Conv2d(18, 16, kernel_size=2, stride=2)
        self.refine = nn.Conv2d(16, 16, 3, padding=1)
        self.class_token = nn.Parameter(torch.randn(1, 1, 16) * 0.5)
        self.pos_embedding = nn.Parameter(torch.randn(1, 16, 7, 7) * 0.3)
        self.ln_1, self.ln_2 = nn.LayerNorm(16, eps=1e-6), nn.LayerNorm(16, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.heads = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.refine(self.conv_proj(self.features(x)))
        n, c, h, w = x.shape
        position = F.interpolate(self.pos_embedding, size=(h, w), mode="bicubic", align_corners=False)
        x = (x + position).reshape(n, c, h * w).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        out = self.ln_1(x)
        out, _ = self.self_attention(out, out, out, need_weights=False)
        x = x + out
        x = x + self.mlp(self.ln_2(x))
        return self.heads(x[:, 0])


class LeViT(nn.Module):
    """LeViT: linear layers with BatchNorm1d over tokens, attention bias by index, strided query subsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            conv_bn(3, 8, act=nn.Hardswish, stride=2),
            conv_bn(8, 12, act=nn.Hardswish, stride=2),
            conv_bn(12, 14, act=nn.Hardswish),
            conv_bn(14, 14, act=nn.Hardswish, groups=2),
            conv_bn(14, 16, act=nn.Hardswish),
        )
        self.kv = nn.Linear(16, 2 * (4 + 8), bias=False)
        self.kv_bn = nn.BatchNorm1d(24)
        self.q = nn.Linear(16, 2 * 4, bias=False)
        self.q_bn = nn.BatchNorm1d(8)
        self.proj = nn.Linear(16, 20, bias=False)
        self.attention_biases = nn.Parameter(torch.randn(2, 64) * 0.3)
        keys = list(itertools.product(range(8), range(8)))
        queries = list(itertools.product(range(0, 8, 2), range(0, 8, 2)))
        offsets = [[abs(q[0] - k[0]) * 8 + abs(q[1] - k[1]) for k in keys] for q in queries]
        self.register_buffer("attention_bias_idxs", torch.tensor(offsets), persistent=False)
        self.head_bn = nn.BatchNorm1d(20)
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        b, n, c = x.shape
        kv = self.kv(x)
        k, v = self.kv_bn(kv.flatten(0, 1)).reshape_as(kv).view(b, n, 2, -1).split([4, 8], dim=3)
        k, v = k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        q = self.q(x.view(b, 8, 8, c)[:, ::2, ::2].reshape(b, -1, c))
        q = self.q_bn(q.flatten(0, 1)).reshape_as(q).view(b, -1, 2, 4).permute(0, 2, 1, 3)
        attn = (q @ k * 0.5 + self.attention_biases[:, self.attention_bias_idxs]).softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(b, -1, 16)
        x = self.proj(F.hardswish(x))
        return self.head(self.head_bn(x.mean(1)))


class EdgeNeXt(nn.Module):
    """EdgeNeXt: hierarchical split depthwise convolutions, Fourier positions, attention across channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, stride=4), nn.BatchNorm2d(16))
        self.convs = nn.ModuleList(nn.Conv2d(5, 5, 3, padding=1, groups=5) for _ in range(2))
        self.token_projection = nn.Conv2d(8, 16, 1)
        self.norm_xca, self.norm = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.temperature = nn.Parameter(torch.rand(2, 1, 1) + 0.5)
        self.gamma_xca = nn.Parameter(torch.rand(16))
        self.last = nn.Conv2d(16, 24, 1)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x = self.stem(x)
        spx = x.chunk(3, dim=1)  # 6, 6 and 4 channels
        first = self.convs[0](spx[0][:, :5])
        second = self.convs[1](first + spx[1][:, 1:])
        x = torch.cat((first, second, spx[0][:, 5:], spx[1][:, :1], spx[2]), dim=1)
        b, c, h, w = x.shape
        x = x + self.token_projection(self._positions(h, w, x))
        tokens = x.reshape(b, c, h * w).permute(0, 2, 1)
        tokens = tokens + self.gamma_xca * self._attend(self.norm_xca(tokens))
        x = self.norm(tokens).reshape(b, h, w, c).permute(0, 3, 1, 2)
        return self.head(F.gelu(self.last(x + shortcut)))

    @staticmethod
    def _positions(h: int, w: int, like: Tensor) -> Tensor:
        y = torch.arange(1, h + 1, dtype=torch.float32, device=like.device).unsqueeze(1).repeat(1, w) / h * 6.28
        x = torch.arange(1, w + 1, dtype=torch.float32, device=like.device).repeat(h, 1) / w * 6.28
        scales = 100 ** (torch.arange(2, dtype=torch.float32, device=like.device) / 2)
        angles = torch.cat((y[:, :, None] / scales, x[:, :, None] / scales), dim=2)
        both = torch.stack((angles.sin(), angles.cos()), dim=3).flatten(2)
        return both.permute(2, 0, 1).unsqueeze(0).expand(like.shape[0], -1, -1, -1)

    def _attend(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 4, 1).unbind(0)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        return self.proj((attn.softmax(dim=-1) @ v).permute(0, 3, 1, 2).reshape(b, n, c))


class EfficientViT(nn.Module):
    """EfficientViT: linear attention with ReLU kernels, the values padded by a row of ones for the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, act=nn.Hardswish, stride=2), conv_bn(12, 16, stride=2))
        self.qkv = nn.Conv2d(16, 48, 1, bias=False)
        self.aggreg = nn.Sequential(
            nn.Conv2d(48, 48, 5, padding=2, groups=48, bias=False), nn.Conv2d(48, 48, 1, groups=6, bias=False)
        )
        self.proj = conv_bn(32, 16, kernel=1, act=None)
        self.last = conv_bn(16, 24, kernel=1, act=nn.Hardswish)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, _, h, w = x.shape
        qkv = self.qkv(x)
        multi_scale = torch.cat([qkv, self.aggreg(qkv)], dim=1)
        multi_scale = multi_scale.reshape(b, -1, 3 * 8, h * w).transpose(-1, -2)
        q, k, v = multi_scale.chunk(3, dim=-1)
        q, k = F.relu(q), F.relu(k)
        v = F.pad(v, (0, 1), mode="constant", value=1.0)
        out = q @ (k.transpose(-1, -2) @ v)
        out = out[..., :-1] / (out[..., -1:] + 1e-2)
        out = out.transpose(-1, -2).reshape(b, -1, h, w)
        return self.head(self.last(x + self.proj(out)))


class HaloAttention(nn.Module):
    """Halo attention: blocks of queries look at overlapping neighbourhoods, cut by two `unfold` of a padded map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, stride=2), conv_bn(12, 16, stride=2))
        self.q = nn.Conv2d(16, 16, 1, bias=False)
        self.kv = nn.Conv2d(16, 32, 1, bias=False)
        self.tail = _residual_tail(16)
        self.head = classifier(24)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        blocks = (h // 4) * (w // 4)
        q = self.q(x).reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 1, 3, 5, 2, 4)
        q = q.reshape(b, c, 16, blocks).permute(0, 3, 2, 1)  # [B, blocks, 16, C]
        kv = F.pad(self.kv(x), [1, 1, 1, 1]).unfold(2, 6, 4).unfold(3, 6, 4)
        kv = kv.reshape(b, 2 * c, blocks, 36).permute(0, 2, 3, 1)
        k, v = torch.split(kv, [c, c], dim=-1)
        out = ((q @ k.transpose(-1, -2)) * c**-0.5).softmax(dim=-1) @ v
        out = out.permute(0, 3, 2, 1).reshape(b, c, 4, 4, h // 4, w // 4)
        x = x + out.permute(0, 1, 4, 2, 5, 3).contiguous().view(b, c, h, w)
        for layer in self.tail:
            x = layer(x)
        return self.head(x)


class EinsumAttentionPool(nn.Module):
    """Attention pooling by `einsum`: learnt queries over the pixels of a map, as in CLIP's ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 12, stride=2), conv_bn(12, 16), conv_bn(16, 20, stride=2), conv_bn(20, 20), conv_bn(20, 24)
        )
        self.query = nn.Parameter(torch.randn(3, 24) * 0.5)
        self.key = nn.Linear(24, 24, bias=False)
        self.positional_embedding = nn.Parameter(torch.randn(65, 24) * 0.2)
        self.fc = nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([x.mean(dim=1, keepdim=True), x], dim=1) + self.positional_embedding[None, :, :]
        attn = torch.einsum("qc,bnc->bqn", self.query, self.key(x)) / 24**0.5
        pooled = torch.einsum("bqn,bnc->bqc", attn.softmax(-1), x)
        return self.fc(pooled.flatten(1))


FAMILY = "hybrids"
DEFINITIONS = (
    define("botnet", FAMILY, BottleneckTransformer),
    define("maxvit", FAMILY, MaxViT),
    define("swin_conv", FAMILY, ShiftedWindows),
    define("mobilevit", FAMILY, MobileViT),
    define("multihead_hybrid", FAMILY, MultiheadHybrid, ((2, 3, 40, 40),)),
    define("levit", FAMILY, LeViT),
    define("edgenext", FAMILY, EdgeNeXt, ((2, 3, 40, 40),)),
    define("efficientvit", FAMILY, EfficientViT, ((2, 3, 28, 36),)),
    define("halonet", FAMILY, HaloAttention),
    define("einsum_attention_pool", FAMILY, EinsumAttentionPool),
)
