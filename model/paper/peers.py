"""Attention of the paper's authors (Idiap's fast-transformers), if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

NAME = "fast-transformers"
KINDS = ("linear", "softmax", "lsh-1", "lsh-4", "lsh-8")
CHUNK = 32  # positions per chunk of its LSH attention, its default
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def missing() -> str | None:
    """Return the package that is missing, or None if fast-transformers can be imported."""
    found = importlib.util.find_spec("fast_transformers")
    return None if found else "the package pytorch-fast-transformers"


def attentions(length: int) -> dict[str, Attend]:
    """Return its causal attention functions for a length, by our names.

    Its LSH attention needs whole chunks, so shorter rows are padded and masked.
    """
    from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
    from fast_transformers.attention.full_attention import FullAttention
    from fast_transformers.attention.reformer_attention import ReformerAttention
    from fast_transformers.masking import LengthMask, TriangularCausalMask

    kinds: dict[str, Callable[[], torch.nn.Module]] = {
        "linear": lambda: CausalLinearAttention(32),
        "softmax": lambda: FullAttention(attention_dropout=0.0),
        "lsh-1": lambda: ReformerAttention(bits=32, rounds=1, attention_dropout=0.0),
        "lsh-4": lambda: ReformerAttention(bits=32, rounds=4, attention_dropout=0.0),
        "lsh-8": lambda: ReformerAttention(bits=32, rounds=8, attention_dropout=0.0),
    }

    def attention(kind: str, module: torch.nn.Module) -> Attend:
        padded = length + (-length % CHUNK if kind.startswith("lsh-") else 0)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            causal = TriangularCausalMask(padded, device=q.device)
            lengths = LengthMask(torch.full((len(q),), length), padded, device=q.device)
            # It divides by the norms of the padding, so they must not be 0.
            q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padded - length), value=1) for x in (q, k, v))
            o: Tensor = module(q, k, v, causal, lengths, lengths)
            return o[:, :length]

        return attend

    return {kind: attention(kind, make()) for kind, make in kinds.items()}
