"""A model file or module in, a joint training graph out. Nothing here imports tvm."""
