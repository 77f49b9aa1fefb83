"""Network operations, each of which chooses its Triton, C++ or plain PyTorch implementation."""
