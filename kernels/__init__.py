"""Attention and decode kernels: torch, triton and numpy only, nothing of the service or the model."""
