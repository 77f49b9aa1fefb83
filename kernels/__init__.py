"""Attention and decode kernels, on torch, triton and numpy alone."""
