"""Benchmarks of decoding and training."""
