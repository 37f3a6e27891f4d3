"""Bodies of the gf operators in standard ONNX, one file per theme."""

from gfcompile.export.gf import channels, convolution, mixing, moves, patches, pooling, statistics, update, winograd
from gfcompile.export.table import Table

THEMES = (channels, convolution, mixing, moves, patches, pooling, statistics, update, winograd)
TABLE = Table({target: translation for theme in THEMES for target, translation in theme.TABLE.items()})
