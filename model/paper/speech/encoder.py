"""Bidirectional encoders for CTC: transformers with each kind of attention, and a Bi-LSTM.

The rows of a batch are padded to one length; padding does not affect the outputs before a row's
end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.attention.features import elu_feature_map
from scanline.kernels.attention.lsh import lsh_attention, random_rotations
from scanline.kernels.ops.attention import linear_attention
from scanline.model.inputs import sinusoidal_code
from scanline.model.layers.lsh import BUCKETS
from scanline.model.paper.kinds import LSH_COMBINE

LSTM = "bi-lstm"
KINDS = (LSTM, "softmax", "lsh-4", "linear")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes: frames per step, transformer, and LSTM per direction."""

    stack: int
    n_layers: int
    n_heads: int
    d_model: int
    lstm_layers: int
    lstm_size: int


class Encoder(nn.Module):
    """Features ``[B, T, features]`` → log-probabilities of blank and phonemes ``[B, S, 1 + P]``.

    S is T / ``stack``, rounded up.

    Args:
        kind: One of ``KINDS``.
        sizes: Sizes of the network.
        features: Features per frame.
        phonemes: Number of phonemes P.

    Raises:
        ValueError: If the kind is unknown.
    """

    def __init__(self, kind: str, sizes: Sizes, features: int, phonemes: int) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"unknown encoder {kind!r}: choose {', '.join(KINDS)}")
        self.stack = sizes.stack
        width = sizes.stack * features
        self.body = Recurrent(sizes, width) if kind == LSTM else Transformer(kind, sizes, width)
        self.predictor = nn.Linear(self.body.size, 1 + phonemes)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and their lengths; ``lengths: int64 [B]`` are in frames."""
        x = x.masked_fill(~_length_mask(x, lengths).unsqueeze(-1), 0)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.stack))
        lengths = -(-lengths // self.stack)
        x = x.reshape(len(x), x.shape[1] // self.stack, -1)
        logits: Tensor = self.predictor(self.body(x, lengths))
        return logits.log_softmax(-1), lengths


class Recurrent(nn.Module):
    """Bidirectional LSTM, the paper's baseline.

    The two directions of a layer are separate, because a bidirectional ``nn.LSTM`` of packed rows
    takes 20 times as long on a CPU.
    """

    def __init__(self, sizes: Sizes, features: int) -> None:
        super().__init__()
        self.size = 2 * sizes.lstm_size
        inputs = [features] + (sizes.lstm_layers - 1) * [self.size]
        self.forward_layers, self.backward_layers = (
            nn.ModuleList(nn.LSTM(size, sizes.lstm_size, batch_first=True) for size in inputs)
            for _ in range(2)
        )

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        for forward, backward in zip(self.forward_layers, self.backward_layers, strict=True):
            reversed_y, _ = backward(_reverse(x, lengths))
            x = torch.cat([forward(x)[0], _reverse(reversed_y, lengths)], -1)
        return x


def _reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row of ``x: [B, S, D]`` without its padding."""
    position = torch.arange(x.shape[1], device=x.device)
    mirrored = lengths.unsqueeze(1) - 1 - position
    order = torch.where(mirrored < 0, position, mirrored)
    return x.gather(1, order.unsqueeze(-1).expand_as(x))


class Transformer(nn.Module):
    """Transformer over embedded frames with sinusoidal positions."""

    def __init__(self, kind: str, sizes: Sizes, features: int) -> None:
        super().__init__()
        self.size = sizes.d_model
        self.embedding = nn.Linear(features, self.size)
        layers = (TransformerLayer(kind, self.size, sizes.n_heads) for _ in range(sizes.n_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(self.size)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        code = sinusoidal_code(torch.arange(x.shape[1]), self.size).to(x)
        x = self.embedding(x) + code
        for layer in self.layers:
            x = layer(x, lengths)
        y: Tensor = self.norm(x)
        return y


class TransformerLayer(nn.Module):
    """Pre-norm transformer layer with one kind of attention."""

    rotations: Tensor

    def __init__(self, kind: str, D: int, n_heads: int) -> None:
        super().__init__()
        self.kind, self.n_heads = kind, n_heads
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.value, self.out = (nn.Linear(D, D) for _ in range(3))
        if kind.startswith("lsh-"):  # shared queries and keys
            rotations = random_rotations(int(kind[4:]), n_heads, D // n_heads, BUCKETS)
            self.register_buffer("rotations", rotations)
        else:
            self.key = nn.Linear(D, D)
        self.linear1, self.linear2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x + self.out(self._attend(self.norm1(x), lengths).flatten(2))
        y: Tensor = x + self.linear2(F.gelu(self.linear1(self.norm2(x))))
        return y

    def _attend(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Attend to all positions of a row: ``[B, S, D]`` → ``[B, S, H, K]``."""
        heads = (*x.shape[:2], self.n_heads, -1)
        q, v = self.query(x).view(heads), self.value(x).view(heads)
        if self.kind.startswith("lsh-"):
            # New hash functions in every pass of the training, as in LshAttention.
            rotations = torch.randn_like(self.rotations) if self.training else self.rotations
            return lsh_attention(
                q, v, rotations, lengths=lengths, causal=False, combine=LSH_COMBINE
            )
        k = self.key(x).view(heads)
        if self.kind == "linear":  # eq. 6
            q, k = elu_feature_map(q), elu_feature_map(k)
            return linear_attention(q, k, v, causal=False, lengths=lengths)[0]
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        attn_mask = _length_mask(x, lengths)[:, None, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask).transpose(1, 2)


def _length_mask(x: Tensor, lengths: Tensor) -> Tensor:
    """Return the mask of positions of ``x: [B, S, …]`` before their row's end, bool ``[B, S]``."""
    return torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
