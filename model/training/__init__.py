"""Training: a run, its recipe, its optimizers, and the processes that share it."""
