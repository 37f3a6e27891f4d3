"""Philox-2x32: ops/random.py in the kernel's words."""

from typing import Any

from tvm import te, tirx

from gfcompile.ops.random import MULTIPLIER, ROUNDS, WEYL, WORD


def uniform(seed: te.Tensor, stream: int, shape: tuple[int, ...]) -> te.Tensor:
    """Numbers in [0, 1) of `shape`; every element from its own position."""

    def word(value: int) -> Any:
        return tirx.const(value, "uint64")

    def value(*at: Any) -> Any:
        position: Any = tirx.const(0, "int64")
        for index, size in zip(at, shape, strict=True):
            position = position * size + index.astype("int64")
        key = seed[tuple(0 for _ in seed.shape)].astype("uint64") & word(WORD)
        low, high = position.astype("uint64"), word(stream)
        for turn in range(ROUNDS):
            product = low * word(MULTIPLIER)
            low, high = (product >> word(32)) ^ ((key + word(turn * WEYL)) & word(WORD)) ^ high, product & word(WORD)
        return (low >> word(8)).astype("float32") * tirx.const(2.0**-24, "float32")

    return te.compute(shape, value, name="uniform")
