"""What compiling reads of the tuning database: records, their keys, the kernels they are of. `tuning` measures."""
