"""Configuration of each kind of attention, as in the paper's experiments."""

from __future__ import annotations

from typing import Any

from scanline.kernels.attention.lsh import CombineRounds

# As in the authors' code. With "union", as in Reformer, a pair that meets in several rounds counts
# once.
LSH_COMBINE: CombineRounds = "mean"


def attention_config(kind: str, **lsh: Any) -> dict[str, Any]:
    """Return the entries of a ``ModelConfig`` for a kind of attention.

    Args:
        kind: ``linear``, ``softmax``, or ``lsh-N``.
        **lsh: Further entries for LSH attention.
    """
    if not kind.startswith("lsh-"):
        return {"attention": kind}
    return {"attention": kind, "lsh_combine": LSH_COMBINE, **lsh}
