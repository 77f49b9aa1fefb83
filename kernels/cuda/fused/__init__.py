"""Fused decode kernel: all layers of all steps in one CUDA C++ kernel, and its launcher."""
