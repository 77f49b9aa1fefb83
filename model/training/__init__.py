"""Training: runs, configuration, optimizers and data-parallel processes."""
