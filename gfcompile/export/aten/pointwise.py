"""Element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

from typing import Any

import torch

from gfcompile.export.emitter import Emitter, Value
from gfcompile.export.table import Result, Table, Translation

aten = torch.ops.aten
TABLE = Table()
Number = Value | float

UNARY = {
    aten.relu.default: "Relu",
    aten.neg.default: "Neg",
    aten.abs.default: "Abs",
    aten.sign.default: "Sign",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.sqrt.default: "Sqrt",
    aten.reciprocal.default: "Reciprocal",
    aten.sin.default: "Sin",
    aten.cos.default: "Cos",
    aten.tanh.default: "Tanh",
    aten.atan.default: "Atan",
    aten.erf.default: "Erf",
    aten.floor.default: "Floor",
    aten.ceil.default: "Ceil",
    aten.round.default: "Round",
    aten.sigmoid.default: "Sigmoid",
    aten.hardswish.default: "HardSwish",
    aten.mish.default: "Mish",
}
BINARY = {
    "Add": (aten.add.Tensor, aten.add.Scalar),
    "Sub": (aten.sub.Tensor, aten.sub.Scalar),
    "Mul": (aten.mul.Tensor, aten.mul.Scalar),
    "Div": (aten.div.Tensor, aten.div.Scalar),
    "Max": (aten.maximum.default,),
    "Min": (aten.minimum.default,),
    "Pow": (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar),
}
COMPARISONS = {
    "Equal": (aten.eq.Scalar, aten.eq.Tensor),
    "Less": (aten.lt.Scalar, aten.lt.Tensor),
    "LessOrEqual": (aten.le.Scalar, aten.le.Tensor),
    "Greater": (aten.gt.Scalar, aten.gt.Tensor),
    "GreaterOrEqual": (aten.ge.Scalar, aten.ge.Tensor),
}
LOGIC = {
    "And": (aten.logical_and.default, aten.bitwise_and.Tensor, aten.bitwise_and.Scalar),
    "Or": (aten.logical_or.default, aten.bitwise_or.Tensor, aten.bitwise_or.Scalar),
    "Xor": (aten.logical_xor.default, aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar),
}
OF_BOOLS = {"Add": "Or", "Mul": "And", "Max": "Or", "Min": "And"}  # what arithmetic means where ONNX has none


def _unary(kind: str) -> Translation:
    return lambda to, out, x: to.op(kind, to.cast(x, out.dtype))


def _binary(kind: str) -> Translation:
    def translate(to: Emitter, out: Value, a: Number, b: Number, alpha: float = 1) -> str:
        left, right = to.number(a, out.dtype), to.number(b, out.dtype)
        if alpha != 1:
            right = to.op("Mul", right, to.scalar(alpha, out.dtype))
        return to.op(OF_BOOLS[kind] if out.dtype == torch.bool else kind, left, right)

    return translate


def _comparison(kind: str) -> Translation:
    return lambda to, _, a, b: _compare(to, kind, a, b)


def _logic(kind: str) -> Translation:
    def translate(to: Emitter, out: Value, a: Number, b: Number) -> str:
        return to.op(
            kind if out.dtype == torch.bool else f"Bitwise{kind}", to.number(a, out.dtype), to.number(b, out.dtype)
        )

    return translate


def _compare(to: Emitter, kind: str, a: Value, b: Number) -> str:
    dtype = common_type(a, b)
    return to.op(kind, to.number(a, dtype), to.number(b, dtype))


def common_type(*operands: Number) -> torch.dtype:
    """The type in which PyTorch combines two operands."""
    stand_ins: list[Any] = [
        torch.empty((1,) * operand.rank, dtype=operand.dtype, device="meta") if isinstance(operand, Value) else operand
        for operand in operands
    ]
    return torch.result_type(*stand_ins)


for _target, _kind in UNARY.items():
    TABLE[_target] = _unary(_kind)
for _make, _kinds in ((_binary, BINARY), (_comparison, COMPARISONS), (_logic, LOGIC)):
    for _kind, _targets in _kinds.items():
        TABLE.update(dict.fromkeys(_targets, _make(_kind)))


@TABLE.writes(aten.ne.Scalar, aten.ne.Tensor)
def _not_equal(to: Emitter, out: Value, a: Value, b: Number) -> str:
    return to.op("Not", _compare(to, "Equal", a, b))


@TABLE.writes(aten.logical_not.default, aten.bitwise_not.default)
def _not(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Not" if out.dtype == torch.bool else "BitwiseNot", to.cast(x, out.dtype))


@TABLE.writes(aten.rsub.Scalar, aten.rsub.Tensor)
def _reversed_sub(to: Emitter, out: Value, a: Number, b: Number, alpha: float = 1) -> str:
    return str(TABLE[aten.sub.Tensor](to, out, b, a, alpha))


@TABLE.writes(aten.div.Tensor_mode, aten.div.Scalar_mode)
def _rounded_div(to: Emitter, out: Value, a: Number, b: Number, rounding_mode: str | None = None) -> str:
    """In float64 for integers: ONNX's integer division truncates, and PyTorch's floor does not."""
    dtype = out.dtype if out.dtype.is_floating_point else torch.float64
    quotient = to.op("Div", to.number(a, dtype), to.number(b, dtype))
    if rounding_mode == "floor":
        quotient = to.op("Floor", quotient)
    elif rounding_mode == "trunc":
        quotient = to.op("Mul", to.op("Floor", to.op("Abs", quotient)), to.op("Sign", quotient))
    return to.cast(Value(quotient, out.shape, dtype), out.dtype)


@TABLE.writes(aten.fmod.Scalar, aten.fmod.Tensor)
def _fmod(to: Emitter, out: Value, a: Number, b: Number) -> str:
    return to.op("Mod", to.number(a, out.dtype), to.number(b, out.dtype), fmod=1)


@TABLE.writes(aten.remainder.Scalar, aten.remainder.Tensor)
def _remainder(to: Emitter, out: Value, a: Number, b: Number) -> str:
    """With the divisor's sign: ONNX's Mod for integers, which has no such form for floats."""
    left, right = to.number(a, out.dtype), to.number(b, out.dtype)
    if not out.dtype.is_floating_point:
        return to.op("Mod", left, right)
    return to.op("Sub", left, to.op("Mul", to.op("Floor", to.op("Div", left, right)), right))


@TABLE.writes(aten.rsqrt.default)
def _rsqrt(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Reciprocal", to.op("Sqrt", to.cast(x, out.dtype)))


@TABLE.writes(aten.log1p.default)
def _log1p(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Log", to.op("Add", to.cast(x, out.dtype), to.scalar(1, out.dtype)))


@TABLE.writes(aten.expm1.default)
def _expm1(to: Emitter, out: Value, x: Value) -> str:
    """exp(x) - 1; near zero, where that cancels, as 2*tanh(x/2) / (1 - tanh(x/2))."""
    value, one = to.cast(x, out.dtype), to.scalar(1, out.dtype)
    half = to.op("Tanh", to.op("Mul", value, to.scalar(0.5, out.dtype)))
    near = to.op("Div", to.op("Add", half, half), to.op("Sub", one, half))
    is_near = to.op("Less", to.op("Abs", value), one)
    return to.op("Where", is_near, near, to.op("Sub", to.op("Exp", value), one))


@TABLE.writes(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(to: Emitter, out: Value, condition: Value, a: Number, b: Number) -> str:
    return to.op("Where", condition, to.number(a, out.dtype), to.number(b, out.dtype))


@TABLE.writes(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(to: Emitter, out: Value, x: Value, mask: Value, number: Number) -> str:
    return to.op("Where", mask, to.number(number, out.dtype), x)


@TABLE.writes(aten.clamp.default, aten.clamp.Tensor, aten.clamp_min.default)
def _clamp(to: Emitter, out: Value, x: Value, low: Number | None = None, high: Number | None = None) -> str:
    bounds = (None if bound is None else to.number(bound, out.dtype) for bound in (low, high))
    return to.op("Clip", to.cast(x, out.dtype), *bounds)


@TABLE.writes(aten.clamp_max.default)
def _clamp_max(to: Emitter, out: Value, x: Value, high: float) -> str:
    return _clamp(to, out, x, None, high)


@TABLE.writes(aten.hardtanh.default)
def _hardtanh(to: Emitter, out: Value, x: Value, low: float = -1.0, high: float = 1.0) -> str:
    return _clamp(to, out, x, low, high)


@TABLE.writes(aten.gelu.default)
def _gelu(to: Emitter, out: Value, x: Value, approximate: str = "none") -> str:
    return to.op("Gelu", x, approximate=approximate)


@TABLE.writes(aten.leaky_relu.default)
def _leaky_relu(to: Emitter, out: Value, x: Value, slope: float = 0.01) -> str:
    return to.op("LeakyRelu", x, alpha=float(slope))


@TABLE.writes(aten.elu.default)
def _elu(to: Emitter, out: Value, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> str:
    """scale * (x if x > 0 else alpha * (exp(x * input_scale) - 1))"""
    if scale == input_scale == 1:
        return to.op("Elu", x, alpha=float(alpha))
    curve = to.op("Elu", to.op("Mul", x, to.scalar(input_scale, out.dtype)), alpha=float(alpha))
    positive = to.op("Greater", x, to.scalar(0, out.dtype))
    return to.op("Mul", to.op("Where", positive, x, curve), to.scalar(scale, out.dtype))


@TABLE.writes(aten.hardsigmoid.default)
def _hardsigmoid(to: Emitter, out: Value, x: Value) -> str:
    return to.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


@TABLE.writes(aten.silu.default)
def _silu(to: Emitter, out: Value, x: Value) -> str:
    return to.op("Mul", x, to.op("Sigmoid", x))


@TABLE.writes(aten.softplus.default)
def _softplus(to: Emitter, out: Value, x: Value, beta: float = 1, threshold: float = 20) -> str:
    """log(1 + exp(beta*x)) / beta; beyond the threshold x itself, which differs by less than rounding."""
    factor = to.scalar(beta, out.dtype)
    return to.op("Div", to.op("Softplus", to.op("Mul", x, factor)), factor)


@TABLE.writes(aten._prelu_kernel.default)
def _prelu(to: Emitter, out: Value, x: Value, slope: Value) -> Result:
    return to.op("PRelu", x, slope)
