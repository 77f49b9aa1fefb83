"""Attention, training and decoding kernels. Depends on torch, triton and numpy only."""
