"""Rewrites of the training graph, one file each; `gfcompile.passes.pipeline` gives their order and its reasons."""
