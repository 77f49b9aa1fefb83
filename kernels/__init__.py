"""Attention, training and decoding kernels. Depends on torch, triton and numpy only."""

import os
import sys


def _use_one_torch_thread() -> None:
    """Let torch compute in this thread, because it would wait forever for the parent's threads."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_use_one_torch_thread)
