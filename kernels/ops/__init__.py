"""Operators that choose between Triton, C++ and plain torch."""
