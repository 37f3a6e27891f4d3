"""ONNX out: every graph between two passes as a file that others can read and run, and the trained model.

The road: `model` (a step's graph) and `skeleton` (the model without its weights) hand an fx graph to `writer`, which
looks each operator up: `aten/` for ATen, `decompose` for what PyTorch spells in core ATen, `functions` and `gf/` for
ours. An operator that is in none of them becomes a node without a body, and the file says so.
"""

from gfcompile.export.emitter import NoTranslation
from gfcompile.export.model import write_graph
from gfcompile.export.skeleton import write_skeleton

__all__ = ["NoTranslation", "write_graph", "write_skeleton"]
