"""What CPU training and scoring run beside matrix products, in C++."""
