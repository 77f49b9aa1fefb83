"""Triton kernels for CUDA devices, and the gate that compiles them without one."""
