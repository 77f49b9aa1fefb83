"""Attention of the paper's authors (Idiap's fast-transformers), if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

NAME = "fast-transformers"
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def installed() -> bool:
    """Return True if fast-transformers can be imported."""
    return importlib.util.find_spec("fast_transformers") is not None


def attentions(length: int) -> dict[str, Attend]:
    """Return its causal attention functions for a length, by our names; {} if not installed."""
    if not installed():
        return {}
    from fast_transformers.attention.causal_linear_attention import CausalLinearAttention
    from fast_transformers.attention.full_attention import FullAttention
    from fast_transformers.attention.reformer_attention import ReformerAttention
    from fast_transformers.masking import LengthMask, TriangularCausalMask

    kinds: dict[str, Callable[[], torch.nn.Module]] = {
        "linear": lambda: CausalLinearAttention(32),
        "softmax": lambda: FullAttention(attention_dropout=0.0),
        "lsh-1": lambda: ReformerAttention(bits=32, rounds=1, attention_dropout=0.0),
        "lsh-4": lambda: ReformerAttention(bits=32, rounds=4, attention_dropout=0.0),
    }

    def attention(make: Callable[[], torch.nn.Module]) -> Attend:
        module = make()

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            causal = TriangularCausalMask(length, device=q.device)
            lengths = LengthMask(torch.full((len(q),), length), device=q.device)
            o: Tensor = module(q, k, v, causal, lengths, lengths)
            return o

        return attend

    return {kind: attention(make) for kind, make in kinds.items()}
