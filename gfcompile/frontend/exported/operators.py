"""The operators that an exported program may call: tensor arithmetic that the compiler translates or takes apart.

A table and not a rule: among ATen's two thousand operators are some that open files or read any memory.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from gfcompile.frontend.exported.guards import on_sizes
from gfcompile.frontend.foreign import MalformedError

_ATEN = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution linear bilinear
    matmul mm bmm addmm baddbmm mv dot vdot einsum tensordot outer scaled_dot_product_attention
    batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _native_batch_norm_legit_functional
    _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update native_batch_norm
    group_norm native_group_norm layer_norm native_layer_norm instance_norm rms_norm _weight_norm
    norm linalg_vector_norm cosine_similarity pairwise_distance
    relu relu6 leaky_relu prelu rrelu elu selu celu gelu silu mish sigmoid log_sigmoid hardsigmoid hardswish hardtanh
    hardshrink softshrink threshold softplus glu tanh softmax _softmax log_softmax _log_softmax logit
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_unpool2d avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d adaptive_max_pool1d
    adaptive_max_pool2d fractional_max_pool2d
    pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im unfold grid_sampler grid_sampler_2d
    affine_grid_generator upsample_nearest1d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_linear1d
    _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
    dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout
    bernoulli rand rand_like randn randn_like uniform normal
    add sub mul div rsub addcmul addcdiv lerp neg abs sign square sqrt rsqrt reciprocal pow exp exp2 expm1 log log2
    log10 log1p erf erfc sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh floor ceil round trunc frac
    floor_divide true_divide remainder fmod clamp clamp_min clamp_max clip minimum maximum fmin fmax nan_to_num hypot
    logaddexp sinc xlogy copysign
    eq ne lt le gt ge isnan isinf isfinite logical_and logical_or logical_not logical_xor
    bitwise_and bitwise_or bitwise_not bitwise_xor where masked_fill
    sum mean prod var std var_mean std_mean amax amin aminmax max min argmax argmin any all logsumexp cumsum cumprod
    cummax cummin topk sort argsort kthvalue median
    view reshape reshape_as view_as flatten unflatten squeeze unsqueeze permute transpose t mT matrix_H movedim
    swapaxes expand expand_as repeat repeat_interleave tile cat concat stack hstack vstack split split_with_sizes chunk
    tensor_split unbind narrow select slice roll flip rot90 diagonal diag tril triu
    index index_select index_put gather scatter scatter_add take_along_dim embedding one_hot slice_scatter
    select_scatter meshgrid
    arange linspace eye zeros ones full zeros_like ones_like full_like empty empty_like empty_permuted new_zeros
    new_ones new_full new_empty new_empty_strided scalar_tensor lift_fresh_copy lift_fresh
    to type_as _to_copy clone contiguous detach alias copy copy_ fill zero numpy_T
    sym_size sym_numel
"""
_IGNORED = """
    _assert_tensor_metadata _assert_scalar _assert_async sym_constrain_range sym_constrain_range_for_size
"""
_SIZE_OPERATORS = (
    "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_",
)  # fmt: skip
_SIZE_FUNCTIONS = ("sym_int", "sym_float", "sym_max", "sym_min", "sym_not", "sym_sum")
_ON_SIZES: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": on_sizes(getattr(operator, name)) for name in _SIZE_OPERATORS},
    **{f"torch.{name}": on_sizes(getattr(torch, name)) for name in _SIZE_FUNCTIONS},
    **{f"math.{name}": on_sizes(getattr(math, name)) for name in ("trunc", "ceil", "floor")},
}
NO_GRADIENT = "torch.ops.higher_order.wrap_with_set_grad_enabled"
PREFIX = "torch.ops.aten."

_ARGUMENTS = {
    "Tensor", "number", "int", "SymInt", "float", "complex", "bool", "str", "Device", "ScalarType", "Layout",
    "MemoryFormat", "Generator", "Optional", "List",
}  # fmt: skip
_RESULTS = {"Tensor", "List[Tensor]", "SymInt", "int"}
ADMITTED = frozenset(_ATEN.split())
_BY_VALUES = {"repeat_interleave.Tensor", "repeat_interleave.self_Tensor"}  # counts in a tensor, which nobody checks
_NOTHING_TO_DO = frozenset(_IGNORED.split())


def is_ignored(target: str) -> bool:
    """Whether it only asserts something about shapes, which our own trace fixes."""
    return target.startswith(PREFIX) and target.removeprefix(PREFIX).partition(".")[0] in _NOTHING_TO_DO


def find_operator(target: str) -> Any:
    """The operator of this full name, an ATen overload or arithmetic on sizes; None for one that is not admitted."""
    if target in _ON_SIZES:
        return _ON_SIZES[target]
    if not target.startswith(PREFIX):
        return None
    name, _, overload = target.removeprefix(PREFIX).partition(".")
    if name not in ADMITTED and name.removesuffix("_") not in ADMITTED:
        return None
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or overload not in packet.overloads():
        raise MalformedError(f"there is no operator '{target}'")
    if target.removeprefix(PREFIX) in _BY_VALUES:
        return None
    found = getattr(packet, overload)
    return found if _is_on_tensors(found._schema) and not overload.startswith("prim") else None


def _is_on_tensors(schema: Any) -> bool:
    """Not one of TorchScript's operators of the same names on words, lists and objects."""
    kinds = {word for each in schema.arguments for word in re.findall(r"\w+", str(each.type))}
    results = {str(each.type) for each in schema.returns}
    return kinds <= _ARGUMENTS and results <= _RESULTS and "Tensor" in {*kinds, *results}
