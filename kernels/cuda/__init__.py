"""CUDA kernels in Triton and C++, and a check that compiles them without a GPU."""
