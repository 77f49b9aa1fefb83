"""Checkpoints whose matrices are rounded to 16 bits, and stored in half the bytes."""

from __future__ import annotations

import copy

from scanline.model.checkpoint import Checkpoint, CheckpointError


def compact(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with all matrices rounded to float16, which needs half the bytes.

    Results that were measured with the exact weights are dropped from its facts.

    Raises:
        CheckpointError: A weight is out of float16's range.
    """
    model = copy.deepcopy(checkpoint.model)
    for name, tensor in model.state_dict().items():
        if tensor.ndim > 1:
            tensor.copy_(tensor.half())
            if not tensor.isfinite().all():
                raise CheckpointError(f"{checkpoint.name}: {name} is too large for 16 bits")
    measured = ("test", "test_with_label", "native_precision")
    facts = {name: fact for name, fact in checkpoint.facts.items() if name not in measured}
    return Checkpoint(checkpoint.name, model, facts)
