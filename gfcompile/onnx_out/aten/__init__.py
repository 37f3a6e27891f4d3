"""Translations of ATen operators, a theme a file. A new operator is one decorated function in one of them."""

from gfcompile.onnx_out.aten import (
    convolution,
    creation,
    indexing,
    linear,
    norms,
    pointwise,
    pooling,
    reductions,
    resize,
    shapes,
)
from gfcompile.onnx_out.table import Table

THEMES = (convolution, creation, indexing, linear, norms, pointwise, pooling, reductions, resize, shapes)
TABLE = Table({target: translation for theme in THEMES for target, translation in theme.TABLE.items()})
