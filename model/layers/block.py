"""Transformer layer: attention and a feed-forward network with residual connections."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.constants import AttentionKind
from scanline.kernels.ops.linear import (
    LinearOutput,
    linear_deferred_bias,
    linear_gelu,
    with_bias,
)
from scanline.kernels.ops.residual import residual
from scanline.model.config import ModelConfig
from scanline.model.layers.attention import Attention
from scanline.model.layers.base import Layer, State
from scanline.model.layers.linear import LinearAttention
from scanline.model.layers.lsh import LshAttention
from scanline.model.layers.short_conv import ShortConv
from scanline.model.layers.softmax import SoftmaxAttention

# Attention layers by their name in the config.
ATTENTIONS: dict[AttentionKind, Callable[[ModelConfig], Attention]] = {
    "linear": LinearAttention,
    "softmax": SoftmaxAttention,
    "lsh-1": LshAttention,
    "lsh-4": LshAttention,
    "lsh-8": LshAttention,
}


class Block(Layer):
    """Transformer layer with an optional short convolution before each half.

    Its state is that of its parts, with tensors named ``part.name``.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        D = config.d_model
        self.pre_norm = config.norm == "pre"
        self.activation = F.gelu if config.activation == "gelu" else F.relu
        self.attention = ATTENTIONS[config.attention](config)
        self.linear1 = nn.Linear(D, config.d_ff)
        self.linear2 = nn.Linear(config.d_ff, D)
        self.norm1 = nn.LayerNorm(D, eps=1e-5)
        self.norm2 = nn.LayerNorm(D, eps=1e-5)
        convolved = config.short_conv != "none"
        self.conv1 = ShortConv(config) if convolved else None
        self.conv2 = ShortConv(config) if convolved else None

    def _parts(self) -> dict[str, Layer]:
        parts = {"conv1": self.conv1, "attention": self.attention, "conv2": self.conv2}
        return {name: part for name, part in parts.items() if part is not None}

    def _run(self, x: Tensor, apply: Callable[[str, Layer, Tensor], Tensor]) -> Tensor:
        """Run the layer, with its parts evaluated by ``apply(name, part, x)``."""
        parts = self._parts()

        def run(x: Tensor, *names: str) -> Tensor:
            for name in names:
                if name in parts:
                    x = apply(name, parts[name], x)
            return x

        def feed_forward(x: Tensor) -> Tensor:
            y: Tensor = self.linear2(self.activation(self.linear1(run(x, "conv2"))))
            return y

        if self.pre_norm:
            x = x + run(self.norm1(x), "conv1", "attention")
            return x + feed_forward(self.norm2(x))
        x = self.norm1(x + run(x, "conv1", "attention"))
        y: Tensor = self.norm2(x + feed_forward(x))
        return y

    def initial_state(self, rows: int) -> State:
        return {
            f"{name}.{key}": tensor
            for name, part in self._parts().items()
            for key, tensor in part.initial_state(rows).items()
        }

    def forward(self, x: Tensor) -> Tensor:
        x, added = self.forward_deferred(x, None)
        return x if added is None else x + with_bias(added)

    def forward_deferred(
        self, x: Tensor, added: LinearOutput | None
    ) -> tuple[Tensor, LinearOutput | None]:
        """Compute all steps, with the residual additions deferred to the next norm.

        ``added`` is the output of the previous layer that is still to be added to ``x``. Returns
        the new ``x`` and what is still to be added to it: norm and addition are one kernel.
        """
        if not self.pre_norm:
            x = x if added is None else x + with_bias(added)
            return self._run(x, lambda _, part, x: part(x)), None
        x, y = self._add_and_norm(x, added, self.norm1, self.conv1)
        out, linear2 = self.attention.out, self.linear2
        attended = linear_deferred_bias(self.attention.attend(y).flatten(-2), out.weight, out.bias)
        x, y = self._add_and_norm(x, attended, self.norm2, self.conv2)
        if self.activation is F.gelu:
            y = linear_gelu(y, self.linear1.weight, self.linear1.bias)
        else:
            y = self.activation(self.linear1(y))
        return x, linear_deferred_bias(y, linear2.weight, linear2.bias)

    def _add_and_norm(
        self, x: Tensor, added: LinearOutput | None, norm: nn.LayerNorm, conv: ShortConv | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum of ``x`` and ``added``, and its norm after the short convolution."""
        affine, eps = (norm.weight, norm.bias), norm.eps
        if conv is None:
            return residual(x, added, affine, eps=eps)
        return residual(x, added, affine, conv.weight, conv.columns, eps)

    def prefill(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
        state: State = {}

        def apply(name: str, part: Layer, x: Tensor) -> Tensor:
            y, after = part.prefill(x, lengths)
            state.update({f"{name}.{key}": tensor for key, tensor in after.items()})
            return y

        return self._run(x, apply), state

    def step(self, x: Tensor, state: State, steps: Tensor) -> Tensor:
        def apply(name: str, part: Layer, x: Tensor) -> Tensor:
            prefix = f"{name}."
            own = {k.removeprefix(prefix): t for k, t in state.items() if k.startswith(prefix)}
            return part.step(x, own, steps)

        return self._run(x, apply)
