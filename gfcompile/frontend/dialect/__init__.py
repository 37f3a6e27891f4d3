"""Say what a user's model says in the operators that the compiler knows, before it is differentiated.

Each entry is plain PyTorch over ATen and the gf operators: tracing goes through it, so its gradient comes with it.
"""

from __future__ import annotations

import torch
from torch import fx

from gfcompile.frontend.dialect.dimensions import DIMENSIONS
from gfcompile.frontend.dialect.formulas import FORMULAS
from gfcompile.frontend.dialect.randomness import RANDOM
from gfcompile.frontend.dialect.resizing import RESIZING
from gfcompile.frontend.dialect.sampling import SAMPLING

ASSERTIONS = {torch.ops.aten._assert_tensor_metadata.default}  # what the trace was promised holds for every batch
DIALECT = {**FORMULAS, **RESIZING, **DIMENSIONS, **SAMPLING}


def speak_dialect(body: fx.GraphModule, seed: fx.Node | None = None) -> None:
    """Replace the operators of an exported graph in place. Random numbers come from `seed`, one stream per operator."""
    stream = 0
    for node in list(body.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in RANDOM and seed is not None:
            node.args = (seed, stream, *node.args)
            node.target = RANDOM[node.target]
            stream += 1
        elif node.target in DIALECT:
            node.target = DIALECT[node.target]
    body.recompile()
