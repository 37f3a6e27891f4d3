"""The table of ONNX operators, one file per theme."""

from collections.abc import Mapping

from gfcompile.frontend.onnx.operator import Operator
from gfcompile.frontend.onnx.operators import (
    activations,
    arithmetic,
    indexing,
    layers,
    normalization,
    padding,
    pooling,
    reductions,
    resize,
    shapes,
)

TABLE: Mapping[str, Operator] = {
    **activations.OPERATORS,
    **arithmetic.OPERATORS,
    **indexing.OPERATORS,
    **layers.OPERATORS,
    **normalization.OPERATORS,
    **padding.OPERATORS,
    **pooling.OPERATORS,
    **reductions.OPERATORS,
    **resize.OPERATORS,
    **shapes.OPERATORS,
}
