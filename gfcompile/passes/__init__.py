"""Rewrites of the training graph, one file each; `gfcompile.pipeline` gives their order and its reasons."""
