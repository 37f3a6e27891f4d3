"""Arithmetic on shapes: convolutions, patch grids, memory layouts, Winograd's transforms, drawn channels."""
