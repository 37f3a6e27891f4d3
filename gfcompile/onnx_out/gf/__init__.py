"""Bodies of the gf operators in standard ONNX, a theme a file."""

from gfcompile.onnx_out.gf import channels, convolution, mixing, moves, patches, pooling, statistics, update, winograd
from gfcompile.onnx_out.table import Table

THEMES = (channels, convolution, mixing, moves, patches, pooling, statistics, update, winograd)
TABLE = Table({target: translation for theme in THEMES for target, translation in theme.TABLE.items()})
