"""C++ operations for training and scoring on a CPU, as torch operators."""
