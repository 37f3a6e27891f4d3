"""Admitted operators that trust their arguments too much, with what they forget to ask.

ATen checks most arguments, but not all: some kernels write past a tensor that is too short, divide by what overflows,
or allocate whatever they are told. A guarded operator asks first and is then called as it is: tracing passes through.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

LARGEST = 1 << 27  # values of a tensor that a program makes out of nothing: half a gigabyte
_LARGEST_SIZE = 1 << 62

Check = Callable[..., None]


@functools.cache
def guard(operator: Any) -> Any:
    """The operator, asked first if it needs to be."""
    name = operator._schema.name.removeprefix("aten::")
    if name == "_weight_norm":
        return weight_norm
    check = _CHECKS.get(name) or _CHECKS.get(f"{name}.{operator._overloadname}")
    if check is None:
        return operator
    names = [argument.name for argument in operator._schema.arguments]

    def checked(*args: Any, **kwargs: Any) -> Any:
        check(**dict(zip(names, args)), **kwargs)
        return operator(*args, **kwargs)

    checked.__name__ = checked.__qualname__ = f"checked_{name}"
    return checked


def on_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Arithmetic on sizes, kept to numbers that a size can be."""

    def sized(*args: Any) -> Any:
        if any(isinstance(value, (str, bytes, list, tuple, dict)) for value in args):
            raise RuntimeError("a size is computed from something that is no number")
        result = function(*args)
        if isinstance(result, int) and abs(result) > _LARGEST_SIZE:
            raise RuntimeError("a size does not fit its integer")
        return result

    sized.__name__ = sized.__qualname__ = f"sized_{function.__name__}"
    return sized


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g * v / |v|, the norm over every axis but `dim`; ATen's own kernel takes any shapes."""
    axes = [axis for axis in range(v.dim()) if axis != dim % v.dim()]
    return v * (g / v.pow(2).sum(axes, keepdim=True).sqrt())


def _check_statistics(input: Tensor, **others: Any) -> None:
    """Of a batch norm: one value per channel, and statistics where they are read."""
    channels = input.shape[1] if input.dim() > 1 else 0
    given = {name: value for name, value in others.items() if isinstance(value, Tensor)}
    if not channels or any(value.numel() != channels for value in given.values()):
        raise RuntimeError("a batch norm has not one value for each channel")
    if others.get("training") is False and not {"running_mean", "running_var"} <= given.keys():
        raise RuntimeError("a batch norm has no statistics")


def _check_division(self: Any, other: Any, rounding_mode: str | None = None, **_: Any) -> None:
    is_real = any(isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
                  for value in (self, other))  # fmt: skip
    if rounding_mode == "trunc" and not is_real:
        raise RuntimeError("integers are divided with rounding to zero, which may overflow")


def _check_grid(interpolation_mode: int, padding_mode: int, **_: Any) -> None:
    if interpolation_mode not in (0, 1, 2) or padding_mode not in (0, 1, 2):
        raise RuntimeError("a grid is sampled in a way that does not exist")


def _check_groups(input: Tensor, N: Any, C: Any, HxW: Any, weight: Any = None, bias: Any = None, **_: Any) -> None:
    per_channel = all(value is None or value.numel() == C for value in (weight, bias))
    if input.dim() < 2 or tuple(input.shape[:2]) != (N, C) or N * C * HxW != input.numel() or not per_channel:
        raise RuntimeError("a group norm has other sizes than its input")


def _check_attention(key: Tensor, value: Tensor, **_: Any) -> None:
    if key.dim() < 2 or value.dim() < 2 or key.shape[-2] != value.shape[-2]:
        raise RuntimeError("an attention has not one value for each key")


def _check_scales(self: Tensor, output_size: Any, scales_h: Any = None, scales_w: Any = None, **_: Any) -> None:
    """A scale beside the size that it gives: the size is the input's times the scale, rounded down."""
    for size, wanted, scale in zip(self.shape[-2:], output_size, (scales_h, scales_w)):
        if scale is not None and not wanted <= scale * size * (1 + 1e-6) < (wanted + 1) * (1 + 1e-5):
            raise RuntimeError("an image is resized by another scale than its sizes say")


def _check_size(size: Sequence[Any], **_: Any) -> None:
    _limit(math.prod(size))


def _check_square(n: Any, m: Any = 1, **_: Any) -> None:
    _limit(n * (n if m == 1 else m))


def _check_range(end: Any, start: Any = 0, step: Any = 1, **_: Any) -> None:
    _limit((end - start) / step if step else math.inf)


def _check_steps(steps: Any, **_: Any) -> None:
    _limit(steps)


def _check_repeats(self: Tensor, repeats: Any = (), dims: Any = (), **_: Any) -> None:
    _limit(self.numel() * math.prod(repeats if isinstance(repeats, (list, tuple)) else dims))


def _limit(count: Any) -> None:
    if not isinstance(count, Tensor) and count > LARGEST:
        raise RuntimeError(f"a tensor of {count:.3g} values is made out of nothing")


_CHECKS: dict[str, Check] = {
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
         "_batch_norm_with_update", "_batch_norm_with_update_functional"), _check_statistics),
    **dict.fromkeys(
        ("_native_batch_norm_legit_no_training", "_batch_norm_no_update"),
        functools.partial(_check_statistics, training=False)),
    "div": _check_division,
    "div_": _check_division,
    "native_group_norm": _check_groups,
    "scaled_dot_product_attention": _check_attention,
    "_upsample_bilinear2d_aa.default": _check_scales,
    "_upsample_bicubic2d_aa.default": _check_scales,
    "grid_sampler": _check_grid,
    "grid_sampler_2d": _check_grid,
    **dict.fromkeys(
        ("zeros", "ones", "full", "empty", "empty_permuted", "rand", "randn", "new_zeros", "new_ones", "new_full",
         "new_empty", "new_empty_strided"), _check_size),
    "eye": _check_square,
    "arange": _check_range,
    "linspace": _check_steps,
    "repeat": _check_repeats,
    "tile": _check_repeats,
}  # fmt: skip
