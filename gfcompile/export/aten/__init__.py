"""Translations of ATen operators, one file per theme. A new operator is one decorated function in one of them."""

from gfcompile.export.aten import (
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
from gfcompile.export.table import Table

THEMES = (convolution, creation, indexing, linear, norms, pointwise, pooling, reductions, resize, shapes)
TABLE = Table({target: translation for theme in THEMES for target, translation in theme.TABLE.items()})
