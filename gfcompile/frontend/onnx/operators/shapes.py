"""Views and rearrangements: everything that moves values without looking at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import Tensor

from gfcompile.frontend.onnx.graph import Node
from gfcompile.frontend.onnx.operator import Operator, plain

DTYPES = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.INT64: torch.int64,
    TensorProto.INT32: torch.int32,
    TensorProto.INT16: torch.int16,
    TensorProto.INT8: torch.int8,
    TensorProto.UINT8: torch.uint8,
    TensorProto.BOOL: torch.bool,
}


def _reshape(node: Node, x: Tensor, shape: np.ndarray) -> Tensor:
    """A zero copies the input's size unless `allowzero`."""
    sizes = [int(size) for size in shape]
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return x.flatten(1) if axis == 1 and x.ndim > 1 else x.reshape(int(np.prod(x.shape[:axis])), -1)


def _transpose(node: Node, x: Tensor) -> Tensor:
    return x.permute(node.get("perm", list(reversed(range(x.ndim)))))


def _squeeze(node: Node, x: Tensor, axes: np.ndarray | None = None) -> Tensor:
    listed = _axes(node, axes)
    return x.squeeze() if listed is None else x.squeeze(tuple(listed))


def _unsqueeze(node: Node, x: Tensor, axes: np.ndarray | None = None) -> Tensor:
    listed = _axes(node, axes) or []
    rank = x.ndim + len(listed)
    for axis in sorted(axis % rank for axis in listed):
        x = x.unsqueeze(axis)
    return x


def _axes(node: Node, axes: np.ndarray | None) -> Any:
    """An attribute up to opset 12, an input from then on."""
    return node.get("axes") if axes is None else axes.tolist()


def _concat(node: Node, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.get("axis"))


def _split(node: Node, x: Tensor, sizes: np.ndarray | None = None) -> tuple[Tensor, ...]:
    axis = node.get("axis", 0)
    listed = node.get("split") if sizes is None else sizes.tolist()
    if listed is None:
        listed = -(-x.shape[axis] // len(node.outputs))
    return x.split(listed, axis)


def _slice(
    node: Node,
    x: Tensor,
    starts: np.ndarray | None = None,
    ends: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> Tensor:
    begin = node.get("starts") if starts is None else starts.tolist()
    end = node.get("ends") if ends is None else ends.tolist()
    along = node.get("axes", list(range(len(begin)))) if axes is None else axes.tolist()
    stride = [1] * len(begin) if steps is None else steps.tolist()
    for axis, first, last, step in zip(along, begin, end, stride):
        rows = range(*slice(first, last, step).indices(x.shape[axis]))
        if step < 0:  # torch steps forward only: the same rows from the other end, turned round
            rows = rows[::-1]
        index: list[slice] = [slice(None)] * x.ndim
        index[axis] = slice(rows.start, rows.stop, rows.step) if rows else slice(0, 0)
        x = x[tuple(index)]
        if step < 0:
            x = x.flip(axis)
    return x


def _expand(node: Node, x: Tensor, shape: np.ndarray) -> Tensor:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(int(size) for size in shape)))


def _tile(node: Node, x: Tensor, repeats: np.ndarray) -> Tensor:
    return x.repeat(repeats.tolist())


def _depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return torch.nn.functional.pixel_shuffle(x, b)
    x = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    return x.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    x = x.reshape(n, c, h // b, b, w // b, b).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


def _cast(node: Node, x: Tensor) -> Tensor:
    return x.to(DTYPES[node.get("to")])


def _unknown_type(node: Node) -> str | None:
    kind = node.get("to")
    return None if kind in DTYPES else f"type {TensorProto.DataType.Name(kind)} is not known"


def _trilu(node: Node, x: Tensor, offset: np.ndarray | None = None) -> Tensor:
    cut = torch.triu if node.get("upper", 1) else torch.tril
    return cut(x, 0 if offset is None else int(offset.item()))


_SHAPED_BY_SECOND = frozenset({1})
OPERATORS = {
    "Identity": plain(lambda x: x),
    "Reshape": Operator(_reshape, host=_SHAPED_BY_SECOND),
    "Flatten": Operator(_flatten),
    "Transpose": Operator(_transpose),
    "Squeeze": Operator(_squeeze, host=_SHAPED_BY_SECOND),
    "Unsqueeze": Operator(_unsqueeze, host=_SHAPED_BY_SECOND),
    "Concat": Operator(_concat),
    "Split": Operator(_split, host=_SHAPED_BY_SECOND, outputs=1 << 30),
    "Slice": Operator(_slice, host=frozenset({1, 2, 3, 4})),
    "Expand": Operator(_expand, host=_SHAPED_BY_SECOND),
    "Tile": Operator(_tile, host=_SHAPED_BY_SECOND),
    "DepthToSpace": Operator(_depth_to_space),
    "SpaceToDepth": Operator(_space_to_depth),
    "Cast": Operator(_cast, refuse=_unknown_type),
    "CastLike": plain(lambda x, like: x.to(like.dtype)),
    "Trilu": Operator(_trilu, host=_SHAPED_BY_SECOND),
}
