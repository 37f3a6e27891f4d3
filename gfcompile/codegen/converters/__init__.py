"""Translations into Relax: the gf operators, and ATen operators whose own translation by TVM would be slow."""

from gfcompile.codegen.converters import aten, channels, convolution, moves, patches, pooling, update
from gfcompile.codegen.converters.importer import Converter

THEMES = (convolution, patches, pooling, moves, channels, update, aten)
CONVERTERS: dict[str, Converter] = {name: convert for theme in THEMES for name, convert in theme.CONVERTERS.items()}
