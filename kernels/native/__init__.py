"""The native CPU decoder: C++ behind a plain C ABI, its build, and its face in Python."""
