"""Kernels for NVIDIA GPUs: CUDA C from what was scheduled, machine code from NVRTC, C stubs that launch it."""
