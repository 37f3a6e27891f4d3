"""ONNX out: every graph between two passes as a file that others can read and run, and the trained model.

The road: `model` (a step's graph) and `skeleton` (the model without its weights) hand an fx graph to `writer`, which
looks each operator up: `aten/` for ATen, `decompose` for what PyTorch spells in core ATen, `functions` and `gf/` for
ours. An operator that is in none of them becomes a node without a body, and the file says so. `dumps` prints graphs
while they are made, `graphs` finds them again; nothing is imported here, as a list of them needs no torch.
"""
