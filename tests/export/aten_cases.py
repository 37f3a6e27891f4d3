"""Calls of every ATen operator that has a translation, over its options."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.export.harness import Case

aten = torch.ops.aten


def real(*shape: int) -> Tensor:
    """Numbers of either sign, the same for a shape every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def positive(*shape: int) -> Tensor:
    return real(*shape).abs() + 0.1


def whole(*shape: int, below: int = 5, least: int = 0) -> Tensor:
    return torch.randint(least, below, shape, generator=torch.Generator().manual_seed(sum(shape)))


def truth(*shape: int) -> Tensor:
    return real(*shape) > 0


X, Y, ROW = real(2, 3, 4), real(3, 2, 4).reshape(2, 3, 4), real(4)

UNARY = [
    Case(op, (X,))
    for op in (
        aten.relu.default, aten.neg.default, aten.abs.default, aten.sign.default, aten.exp.default,
        aten.sin.default, aten.cos.default, aten.tanh.default, aten.atan.default, aten.erf.default,
        aten.floor.default, aten.ceil.default, aten.round.default, aten.sigmoid.default, aten.hardswish.default,
        aten.mish.default, aten.hardsigmoid.default, aten.silu.default,
    )
]  # fmt: skip
OF_POSITIVE = [
    Case(op, (positive(2, 3),))
    for op in (
        aten.log.default, aten.sqrt.default, aten.reciprocal.default, aten.rsqrt.default, aten.log1p.default,
    )
]  # fmt: skip
BINARY = [
    Case(op, (X, other))
    for op, others in {
        aten.add.Tensor: (Y, ROW, 1e-3),
        aten.sub.Tensor: (Y, ROW, 2),
        aten.mul.Tensor: (Y, ROW, truth(2, 3, 4), whole(3, 4)),
        aten.div.Tensor: (positive(2, 3, 4), 3),
        aten.maximum.default: (Y,),
        aten.minimum.default: (ROW,),
        aten.add.Scalar: (1.5,),
        aten.sub.Scalar: (1.5,),
        aten.mul.Scalar: (-2,),
        aten.div.Scalar: (49,),
        aten.rsub.Scalar: (1,),
        aten.rsub.Tensor: (Y,),
        aten.pow.Tensor_Scalar: (2, 3),
        aten.eq.Scalar: (float(X[0, 1, 2]),),
        aten.eq.Tensor: (torch.where(truth(2, 3, 4), X, Y),),
        aten.ne.Scalar: (float(X[0, 1, 2]),),
        aten.ne.Tensor: (torch.where(truth(2, 3, 4), X, Y),),
        aten.lt.Scalar: (0,),
        aten.lt.Tensor: (Y,),
        aten.le.Scalar: (0.5,),
        aten.le.Tensor: (ROW,),
        aten.gt.Scalar: (0,),
        aten.gt.Tensor: (Y,),
        aten.ge.Scalar: (0,),
        aten.ge.Tensor: (Y,),
    }.items()
    for other in others
]
ARITHMETIC = [
    Case(aten.add.Tensor, (X, Y), {"alpha": 0.5}),
    Case(aten.sub.Tensor, (X, Y), {"alpha": 2}),
    Case(aten.rsub.Scalar, (X, 1, 2)),
    Case(aten.add.Tensor, (truth(2, 3), truth(3, 2).reshape(2, 3))),
    Case(aten.add.Tensor, (whole(3), X[0, :, 0])),
    Case(aten.div.Tensor, (whole(3, least=1), whole(3, least=1) + 1)),
    Case(aten.div.Tensor_mode, (X, 0.3), {"rounding_mode": "floor"}),
    Case(aten.div.Tensor_mode, (X, Y), {"rounding_mode": "trunc"}),
    Case(aten.div.Tensor_mode, (whole(7, least=-9), 4), {"rounding_mode": "floor"}),
    Case(aten.div.Tensor_mode, (whole(7, least=-9), 4), {"rounding_mode": "trunc"}),
    Case(aten.div.Scalar_mode, (X, 0.3), {"rounding_mode": None}),
    Case(aten.fmod.Scalar, (X, 0.3)),
    Case(aten.fmod.Scalar, (whole(7, least=-9), 4)),
    Case(aten.fmod.Tensor, (X, Y)),
    Case(aten.remainder.Scalar, (X, -0.3)),
    Case(aten.remainder.Scalar, (whole(7, least=-9), 4)),
    Case(aten.remainder.Tensor, (X, Y)),
    Case(aten.pow.Tensor_Tensor, (positive(2, 3), real(2, 3))),
    Case(aten.pow.Scalar, (2.5, real(2, 3))),
    Case(aten.ne.Scalar, (whole(9), -100)),
    Case(aten.lt.Scalar, (whole(9), 1.5)),
    Case(aten.where.self, (truth(2, 3, 4), X, Y)),
    Case(aten.where.self, (truth(2, 3, 4), torch.tensor(0.0), Y)),
    Case(aten.where.ScalarOther, (truth(2, 3, 4), X, 2.0)),
    Case(aten.where.ScalarSelf, (truth(2, 3, 4), 2.0, X)),
    Case(aten.where.Scalar, (truth(2, 3, 4), 1.0, 2.0)),
    Case(aten.masked_fill.Scalar, (X, truth(3, 4), -1)),
    Case(aten.masked_fill.Tensor, (X, truth(3, 4), torch.tensor(-1.0))),
    Case(aten.logical_not.default, (truth(5),)),
    Case(aten.bitwise_not.default, (truth(5),)),
    Case(aten.bitwise_not.default, (whole(5),)),
]
LOGIC = [
    Case(op, (left, right))
    for name in ("and", "or", "xor")
    for op, left, right in (
        (getattr(aten, f"logical_{name}").default, truth(7), truth(1, 7)),
        (getattr(aten, f"bitwise_{name}").Tensor, truth(7), truth(1, 7)),
        (getattr(aten, f"bitwise_{name}").Tensor, whole(7), whole(1, 7)),
        (getattr(aten, f"bitwise_{name}").Scalar, whole(7), 3),
    )
]
ACTIVATIONS = [
    Case(aten.clamp.default, (X, 0, 0.7)),
    Case(aten.clamp.default, (X, None, 0.7)),
    Case(aten.clamp.default, (whole(9), 1)),
    Case(aten.clamp.Tensor, (X, torch.tensor(-0.1), torch.tensor(0.3))),
    Case(aten.clamp_min.default, (X, 0.1)),
    Case(aten.clamp_max.default, (X, 0.1)),
    Case(aten.hardtanh.default, (X,)),
    Case(aten.hardtanh.default, (X, 0.0, 0.6)),
    Case(aten.gelu.default, (X,)),
    Case(aten.gelu.default, (X,), {"approximate": "tanh"}),
    Case(aten.leaky_relu.default, (X,)),
    Case(aten.expm1.default, (X * 1e-4,)),
    Case(aten.expm1.default, (X * 40,)),
    Case(aten.leaky_relu.default, (X, 0.2)),
    Case(aten.elu.default, (X,)),
    Case(aten.elu.default, (X, 0.7)),
    Case(aten.elu.default, (X, 1.67, 1.05, 0.5)),
    Case(aten.softplus.default, (X * 20,)),
    Case(aten.softplus.default, (X, 2.0, 5.0)),
    Case(aten._prelu_kernel.default, (X, real(3, 1))),
]
REDUCTIONS = [
    Case(op, args)
    for op in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.logsumexp.default)
    for args in ((X, [1]), (X, [-1, 0], True), (X, [0, 1, 2]))
] + [
    Case(aten.sum.dim_IntList, (X, [])),
    Case(aten.sum.dim_IntList, (real(), [])),
    Case(aten.sum.default, (truth(2, 3),)),
    Case(aten.sum.default, (X,)),
    Case(aten.sum.dim_IntList, (whole(3, 4), [0])),
    Case(aten.mean.default, (X,)),
    Case(aten.max.default, (X,)),
    Case(aten.max.dim, (X, 1)),
    Case(aten.max.dim, (X, -1, True), read=(0,)),
    Case(aten.min.dim, (X, 0, True)),
    Case(aten.min.default, (X,)),
    Case(aten.prod.default, (X,)),
    Case(aten.prod.dim_int, (X, 1, True)),
    Case(aten.any.dim, (truth(3, 2), 1)),
    Case(aten.any.dims, (truth(3, 2), [0, 1], True)),
    Case(aten.any.default, (whole(3),)),
    Case(aten.all.dim, (truth(5, 2), 1)),
    Case(aten.all.default, (truth(3, 2),)),
    Case(aten.linalg_vector_norm.default, (X, 2, [1], True)),
    Case(aten.linalg_vector_norm.default, (X, 1)),
    Case(aten.linalg_vector_norm.default, (X, float("inf"), [0, 2])),
    Case(aten.var.correction, (X, [0, 2]), {"correction": 0, "keepdim": True}),
    Case(aten.var.correction, (X, [1])),
    Case(aten.var_mean.correction, (X, [0, 2]), {"correction": 0}),
    Case(aten.var_mean.correction, (X, [2]), {"correction": 1, "keepdim": True}),
    Case(aten.argmax.default, (X, 1)),
    Case(aten.argmax.default, (X, -1, True)),
    Case(aten.argmax.default, (X,)),
    Case(aten._softmax.default, (X, 1, False)),
    Case(aten._log_softmax.default, (X, -1, False)),
    Case(aten.cumsum.default, (X, 1)),
    Case(aten.cumsum.default, (truth(3, 4), -1)),
]
SHAPES = [
    Case(aten.alias.default, (X,)),
    Case(aten.clone.default, (X,), {"memory_format": torch.contiguous_format}),
    Case(aten.detach.default, (X,)),
    Case(aten.lift_fresh_copy.default, (X,)),
    Case(aten.contiguous.default, (X,)),
    Case(aten._to_copy.default, (X,), {"dtype": torch.int64}),
    Case(aten._to_copy.default, (truth(3),), {"dtype": torch.float32}),
    Case(aten.view.default, (X, [6, -1])),
    Case(aten.view.default, (torch.zeros(2, 0), [0, 3])),
    Case(aten.reshape.default, (X, [24])),
    Case(aten._unsafe_view.default, (X, [4, 6])),
    Case(aten.unsqueeze.default, (X, -1)),
    Case(aten.squeeze.default, (real(1, 3, 1),)),
    Case(aten.squeeze.dim, (real(1, 3, 1), 0)),
    Case(aten.squeeze.dims, (real(1, 3, 1), [0, 2])),
    Case(aten.flatten.using_ints, (X, 1)),
    Case(aten.unflatten.int, (X, 2, [2, 2])),
    Case(aten.expand.default, (real(3, 1), [2, -1, 4])),
    Case(aten.copy.default, (X, ROW)),
    Case(aten.permute.default, (X, [2, 0, -2])),
    Case(aten.transpose.int, (X, 0, -1)),
    Case(aten.t.default, (real(2, 3),)),
    Case(aten.repeat.default, (real(2, 3), [2, 1, 3])),
    Case(aten.cat.default, ([X, Y], 1)),
    Case(aten.cat.default, ([torch.zeros(0), X, whole(2, 3, 4)], -1)),
    Case(aten.slice.Tensor, (X, 1, 1, 3)),
    Case(aten.slice.Tensor, (X, 2, 0, 2**63 - 1, 2)),
    Case(aten.slice.Tensor, (X, -1, -3, -1)),
    Case(aten.slice.Tensor, (X,)),
    Case(aten.select.int, (X, 1, 2)),
    Case(aten.select.int, (X, 2, -1)),
    Case(aten.flip.default, (X, [0, 2])),
    Case(aten.split_with_sizes.default, (X, [1, 3], 2)),
    Case(aten.split.Tensor, (real(5, 2), 2)),
    Case(aten.unbind.int, (X, 1)),
    Case(aten.constant_pad_nd.default, (X, [1, 2], 3.0)),
    Case(aten.constant_pad_nd.default, (X, [0, 1, -1, 2])),
]
CREATION = [
    Case(aten.full.default, ([2, 3], 1.5)),
    Case(aten.full.default, ([], 7)),
    Case(aten.full_like.default, (X, 1), {"pin_memory": False, "memory_format": torch.preserve_format}),
    Case(aten.full_like.default, (X, 2), {"dtype": torch.int64}),
    Case(aten.new_full.default, (X, [2], 3)),
    Case(aten.scalar_tensor.default, (0.5,), {"dtype": torch.float32}),
    Case(aten.zeros.default, ([2, 3],)),
    Case(aten.zeros_like.default, (X,)),
    Case(aten.new_zeros.default, (X, [2])),
    Case(aten.ones.default, ([2, 3],), {"dtype": torch.bool}),
    Case(aten.ones_like.default, (X,)),
    Case(aten.new_ones.default, (X, [2])),
    Case(aten.arange.default, (5,)),
    Case(aten.arange.start, (2, 5), {"dtype": torch.float32}),
    Case(aten.arange.start_step, (1, 8, 3), {"dtype": torch.int64}),
    Case(aten.arange.start_step, (0.5, 2.0, 0.25)),
    Case(aten.eye.default, (3,)),
    Case(aten.eye.m, (2, 3)),
]
UNINITIALISED = (
    aten.empty.memory_format, aten.empty_like.default, aten.empty_permuted.default, aten.empty_strided.default,
    aten.new_empty.default, aten.new_empty_strided.default,
)  # fmt: skip
PLACES = torch.tensor([[1, -1], [0, 2]])
INDEXING = [
    Case(aten.gather.default, (X, 2, whole(2, 3, 2, below=4))),
    Case(aten.index_select.default, (X, 1, torch.tensor([2, 0, 2, 1]))),
    Case(aten.embedding.default, (real(5, 3), whole(2, 4))),
    Case(aten.scatter.value, (X, 1, whole(2, 1, 4, below=3), -1)),
    Case(aten.scatter.src, (X, 1, whole(2, 1, 4, below=3), real(2, 1, 4))),
    Case(aten.scatter.src, (X, 2, whole(2, 3, 1, below=4), Y)),
    Case(aten.scatter_add.default, (X, 1, whole(2, 5, 4, below=3), real(2, 5, 4))),
    Case(aten.index.Tensor, (X, [torch.tensor([1, 0, 1])])),
    Case(aten.index.Tensor, (X, [None, PLACES])),
    Case(aten.index.Tensor, (real(2, 3, 4, 5), [None, None, torch.tensor([[0], [3]]), torch.tensor([4, -5, 1])])),
    Case(aten.index.Tensor, (real(4, 3, 4, 5), [PLACES, None, torch.tensor([3, -1])])),
    Case(aten.index.Tensor, (real(4, 3, 4, 5), [None, PLACES, PLACES, PLACES])),
    Case(aten._unsafe_index.Tensor, (real(2, 3, 4, 5), [None, None, torch.tensor([[0], [3]]), torch.tensor([4, 1])])),
    Case(aten.index_put.default, (X, [torch.tensor([1])], real(1, 3, 4))),
    Case(aten.index_put.default, (X, [None, torch.tensor([2, 0])], real(2, 4))),
    Case(
        aten.index_put.default,
        (real(2, 3, 4, 5), [None, None, torch.tensor([[0], [3]]), torch.tensor([4, -5, 4])], real(2, 3, 2, 3), True),
    ),
    Case(aten._unsafe_index_put.default, (X, [torch.tensor([0, 0]), torch.tensor([1, 1])], real(2, 4), True)),
    Case(aten.slice_scatter.default, (X, real(2, 2, 4), 1, 1, 3)),
    Case(aten.slice_scatter.default, (X, real(2, 3, 2), -1, 0, None, 2)),
    Case(aten.select_scatter.default, (X, real(2, 4), 1, -1)),
    Case(aten.unfold.default, (real(2, 7, 3), 1, 3, 2)),
    Case(aten.unfold.default, (X, -1, 2, 1)),
    Case(aten.as_strided.default, (X, [2, 2, 3], [12, 1, 4], 1)),
    Case(aten.as_strided.default, (X, [3, 3], [2, 1])),
    Case(aten.as_strided_scatter.default, (X, real(2, 3), [2, 3], [12, 4], 2)),
]
PRODUCTS = [
    Case(aten.mm.default, (real(2, 3), real(3, 4))),
    Case(aten.bmm.default, (real(2, 3, 4), real(2, 4, 5))),
    Case(aten.matmul.default, (real(2, 3, 4), real(4))),
    Case(aten.mv.default, (real(2, 3), real(3))),
    Case(aten.dot.default, (real(3), real(3))),
    Case(aten.addmm.default, (real(4), real(2, 3), real(3, 4))),
    Case(aten.addmm.default, (real(2, 4), real(2, 3), real(3, 4)), {"beta": 0.5, "alpha": 2}),
    Case(aten.linear.default, (real(2, 3, 4), real(5, 4), real(5))),
    Case(aten.linear.default, (real(2, 4), real(5, 4))),
]
NORMS = [
    Case(aten._native_batch_norm_legit_no_training.default, (x, *affine, real(3), positive(3), 0.1, 1e-3), read=read)
    for x in (real(2, 3), real(2, 3, 4, 5))
    for affine in ((real(3), real(3)), (None, None))
    for read in ((0,), None)
] + [
    Case(aten.native_layer_norm.default, (real(2, 3, 4), [3, 4], *affine, 1e-5), read=read)
    for affine in ((real(3, 4), real(3, 4)), (real(3, 4), None), (None, None))
    for read in ((0,), (0, 2), None)
]
WEIGHT = real(4, 3, 2, 2)
LENGTHS = torch.linalg.vector_norm(WEIGHT, dim=(1, 2, 3), keepdim=True)
NORMS += [
    Case(
        aten._weight_norm_interface_backward.default,
        (
            real(4, 3, 2, 2).flip(0),
            WEIGHT,
            real(4, 1, 1, 1),
            torch.linalg.vector_norm(WEIGHT, dim=(1, 2, 3), keepdim=True),
            0,
        ),
    )
]
GEOMETRIES = (  # input, weight (ordinary), stride, padding, dilation, groups
    ((2, 3, 7, 8), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    ((2, 3, 8, 7), (4, 3, 3, 3), [2, 2], [1, 1], [1, 1], 1),
    ((2, 4, 9, 8), (6, 2, 3, 2), [3, 2], [0, 1], [1, 2], 2),
    ((2, 4, 7, 7), (8, 1, 5, 5), [2, 2], [2, 2], [1, 1], 4),
    ((2, 4, 8, 8), (4, 4, 1, 1), [2, 2], [0, 0], [1, 1], 1),
    ((1, 2, 9, 9), (3, 2, 3, 3), [1], [4], [4], 1),
    ((2, 3, 9), (4, 3, 3), [2], [1], [1], 1),
    ((1, 2, 5, 6, 4), (4, 1, 2, 3, 3), [1, 2, 1], [0, 1, 1], [1, 1, 1], 2),
)


def _convolutions() -> list[Case]:
    cases = []
    for size, kernel, stride, padding, dilation, groups in GEOMETRIES:
        x, w, rank = real(*size), real(*kernel), len(size) - 2
        settings = (stride, padding, dilation, False, [0] * rank, groups)
        gy = torch.randn_like(aten.convolution(x, w, None, *settings))
        cases.append(Case(aten.convolution.default, (x, w, real(kernel[0]), *settings)))
        cases.append(Case(aten.convolution_backward.default, (gy, x, w, [kernel[0]], *settings, [True] * 3)))
        cases.append(
            Case(aten.convolution_backward.default, (gy, x, w, [0], *settings, [False, True, False]), read=(1,))
        )
        # transposed: from the ordinary one's output to its input
        extra = [min(1, pace - 1) for pace in stride] * (rank // len(stride))
        back = (stride, padding, dilation, True, extra, groups)
        y = aten.convolution(gy, w, None, *back)
        cases.append(Case(aten.convolution.default, (gy, w, real(y.shape[1]), *back)))
        cases.append(
            Case(aten.convolution_backward.default, (torch.randn_like(y), gy, w, [y.shape[1]], *back, [True] * 3))
        )
    return cases


MAX_POOLS = (
    ([2, 2],), ([3, 3], [2, 2], [1, 1]), ([3, 2], [1, 2], [1, 0], [2, 1]), ([3, 3], [2, 2], [1, 1], [1, 1], True),
    ([2], [3], [0], [1], True),
)  # fmt: skip
AVG_POOLS = (
    ([2, 2],), ([3, 3], [2, 2], [1, 1]), ([3, 3], [2, 2], [1, 1], False, False), ([3, 2], [2, 3], [1, 0], True),
    ([3, 3], [2, 2], [1, 1], True, False), ([3, 3], [2, 2], [1, 1], False, True, 7), ([2], [3], [0], True),
)  # fmt: skip


def _pools() -> list[Case]:
    cases = []
    for x in (real(2, 3, 7, 8), real(3, 9, 6)):
        for settings in MAX_POOLS:
            cases.append(Case(aten.max_pool2d_with_indices.default, (x, *settings)))
            y, index = aten.max_pool2d_with_indices(x, *settings)
            whole_settings = (*settings, *([], [0], [1], False)[len(settings) - 1 :])
            back = (torch.randn_like(y), x, *whole_settings, index)
            cases.append(Case(aten.max_pool2d_with_indices_backward.default, back))
        for settings in AVG_POOLS:
            cases.append(Case(aten.avg_pool2d.default, (x, *settings)))
            gy = torch.randn_like(aten.avg_pool2d(x, *settings))
            whole_settings = (*settings, *([], [0], False, True, None)[len(settings) - 1 :])
            cases.append(Case(aten.avg_pool2d_backward.default, (gy, x, *whole_settings)))
        for size in ([1, 1], [3, 2], [5, 5]):
            cases.append(Case(aten._adaptive_avg_pool2d.default, (x, size)))
            gy = torch.randn_like(aten._adaptive_avg_pool2d(x, size))
            cases.append(Case(aten._adaptive_avg_pool2d_backward.default, (gy, x)))
    x = real(2, 3, 7, 8)
    for read in ((0,), (1,)):
        cases.append(Case(aten.max_pool2d_with_indices.default, (x, [3, 3], [2, 2], [1, 1]), read=read))
    tied = torch.ones(1, 2, 4, 4)
    cases.append(Case(aten.max_pool2d_with_indices.default, (tied, [3, 3], [2, 2], [1, 1])))
    return cases


IMAGE = real(2, 3, 4, 5)
RESIZES = [
    Case(aten.upsample_nearest2d.vec, (IMAGE, None, [2.0, 2.0])),
    Case(aten.upsample_nearest2d.vec, (IMAGE, [7, 11], None)),
    Case(aten.upsample_nearest2d.default, (IMAGE, [6, 9], 1.5, 1.9)),
    Case(aten.upsample_nearest2d.default, (IMAGE, [3, 2])),
    Case(aten.upsample_bilinear2d.vec, (IMAGE, [8, 10], False, None)),
    Case(aten.upsample_bilinear2d.vec, (IMAGE, None, True, [2.0, 3.0])),
    Case(aten.upsample_bilinear2d.default, (IMAGE, [7, 3], False)),
    Case(aten.upsample_bilinear2d.default, (IMAGE, [7, 3], True)),
    Case(aten.upsample_bicubic2d.vec, (IMAGE, [8, 10], False, None)),
    Case(aten.upsample_bicubic2d.default, (IMAGE, [7, 9], True)),
    Case(aten.upsample_nearest2d_backward.default, (real(2, 3, 8, 10), [8, 10], [2, 3, 4, 5])),
    Case(aten.upsample_nearest2d_backward.default, (real(2, 3, 6, 9), [6, 9], [2, 3, 4, 5], 1.5, 1.9)),
    Case(aten.upsample_bilinear2d_backward.default, (real(2, 3, 8, 10), [8, 10], [2, 3, 4, 5], False)),
    Case(aten.upsample_bilinear2d_backward.default, (real(2, 3, 8, 9), [8, 9], [2, 3, 4, 5], True, None, None)),
]
CASES = [
    *UNARY, *OF_POSITIVE, *BINARY, *ARITHMETIC, *LOGIC, *ACTIVATIONS, *REDUCTIONS, *SHAPES, *CREATION, *INDEXING,
    *PRODUCTS, *NORMS, *_convolutions(), *_pools(), *RESIZES,
]  # fmt: skip

G = real(2, 4, 3, 3)
DECOMPOSED = [
    Case(aten._weight_norm_interface.default, (WEIGHT, real(4, 1, 1, 1))),
    Case(
        aten._native_batch_norm_legit_functional.default, (G, real(4), real(4), real(4), positive(4), True, 0.1, 1e-5)
    ),
    Case(aten._native_batch_norm_legit.no_stats, (G, real(4), real(4), True, 0.1, 1e-5)),
    Case(aten.native_group_norm.default, (G, real(4), real(4), 2, 4, 9, 2, 1e-5)),
    Case(aten.native_group_norm.default, (G, None, None, 2, 4, 9, 2, 1e-5), read=(0,)),
    Case(
        aten.native_layer_norm_backward.default,
        (X, Y, [4], real(2, 3, 1), positive(2, 3, 1), real(4), real(4), [True, True, True]),
    ),
    Case(aten.threshold_backward.default, (X, Y, 0)),
    Case(aten.sigmoid_backward.default, (X, Y)),
    Case(aten.tanh_backward.default, (X, Y)),
    Case(aten.gelu_backward.default, (X, Y)),
    Case(aten.silu_backward.default, (X, Y)),
    Case(aten.hardswish_backward.default, (X, Y * 3)),
    Case(aten.leaky_relu_backward.default, (X, Y, 0.1, False)),
    Case(aten.elu_backward.default, (X, 1.0, 1, 1, False, Y)),
    Case(aten._log_softmax_backward_data.default, (X, Y, 1, torch.float32)),
    Case(aten._softmax_backward_data.default, (X, Y, -1, torch.float32)),
    Case(aten.binary_cross_entropy_with_logits.default, (X, positive(2, 3, 4))),
    Case(aten.huber_loss.default, (X, Y, 1, 0.5)),
    Case(aten.smooth_l1_loss.default, (X, Y, 0)),
    Case(aten.pixel_shuffle.default, (G, 2)),
    Case(aten.std.correction, (X, [1])),
    Case(aten.roll.default, (X, [1], [2])),
    Case(aten.glu.default, (X, 2)),
]
