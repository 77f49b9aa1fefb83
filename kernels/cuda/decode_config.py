"""Network configurations that the decode kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from scanline.kernels.cuda.matmul import BN_RESIDUAL
from scanline.kernels.short_conv import TAPS

LEVELS = 256
WRITE_INTERVAL = 4  # steps between two writes of the attention state, see ``state_bytes``


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Sizes, options and dtype of a network, for which the decode kernels are compiled.

    Attributes:
        pixels: Pixels per image.
        width: Pixels per row of the image.
        steps_per_pixel: Decode steps per pixel.
        channels: Values that one step decides.
        context: Values of the image that the input layer of a step reads.
        embedding_size: Features of the embedding of these values.
        linear_encoding: Whether the input layer has a part that is linear in the intensities.
        classes: Number of labels; 0 for a network without labels.
        outputs: Parameters that the head predicts per step.
        draws: Uniform random numbers per step.
        first_step: First step that the network models; the steps before get ``first_value``.
        dtype: Dtype of the weights and of the products.
        write_interval: Steps between two writes of the attention state.
    """

    pixels: int
    width: int
    steps_per_pixel: int = 1
    channels: int = 1
    context: int
    embedding_size: int
    linear_encoding: bool = False
    classes: int = 0
    layers: int
    heads: int
    d_model: int
    d_ff: int
    outputs: int
    draws: int
    categorical: bool
    pre_norm: bool
    gelu: bool
    short_conv: bool = False
    first_step: int = 0
    first_value: int = 0
    dtype: torch.dtype = torch.bfloat16
    write_interval: int = WRITE_INTERVAL

    @property
    def head_size(self) -> int:
        return self.d_model // self.heads

    @property
    def steps(self) -> int:
        return self.pixels * self.steps_per_pixel

    @property
    def ring(self) -> int:
        """Steps that the ring buffer of a short convolution holds; 0 without one.

        It is one more than the convolution looks back, so that a step never writes an entry that
        another program may still read.
        """
        return self.width + 2 if self.short_conv else 0

    def dtype_of(self, product: str) -> torch.dtype:
        """Return the dtype of a product's weights.

        With a linear encoding of intensities, the 8 bits of bf16 are too coarse for two products:
        the first feed-forward layer, which compares neighbouring intensities, and the head, whose
        logistic distributions may be as narrow as one intensity level.
        """
        exact = product == "0.linear1" or (product == "head" and not self.categorical)
        return torch.float32 if self.linear_encoding and exact else self.dtype

    @property
    def tiles(self) -> int:
        """Tiles per row of the residual stream; each has its own statistics."""
        return -(-self.d_model // BN_RESIDUAL)


def state_bytes(config: DecodeConfig) -> float:
    """Return the bytes of state that one step of one image moves, averaged over an interval.

    A head reads K (K + 1) numbers per step and writes them every ``write_interval``-th step. The
    other steps write one pending entry of 2 K numbers in the products' dtype, and every step reads
    the pending entries. A short convolution reads four steps of its ring buffer and writes one.
    The table shows GB per image with bf16 products and, below, the images per second that a memory
    bandwidth of 3.35 TB/s (H100) allows for the state alone, by write interval:

    ============= ==== ========= ========= ========= =========
    preset        K    1         2         4         8
    ============= ==== ========= ========= ========= =========
    mnist-paper   32   0.424     0.324     0.279     0.267
                       7,903     10,329    11,991    12,569
    cifar10-paper 32   3.322     2.542     2.189     2.089
                       1,008     1,318     1,530     1,604
    mnist         32   0.122     0.097     0.086     0.083
                       27,453    34,486    38,998    40,513
    cifar10       32   0.319     0.254     0.224     0.216
                       10,509    13,202    14,929    15,509
    ============= ==== ========= ========= ========= =========

    An interval of 8 would move 4 % less than 4, with twice the pending entries and additions. Which
    is faster has not been measured.
    """
    K = config.head_size
    state, entry, n = 4 * K * (K + 1), 2 * K * config.dtype.itemsize, config.write_interval
    head = state + (state + (n - 1) * entry + n * (n - 1) / 2 * entry) / n
    ring = 4 * 2 * TAPS * config.d_model if config.short_conv else 0
    return config.layers * (config.heads * head + ring)


_PAPER: dict[str, Any] = {
    "context": 1, "embedding_size": 128, "heads": 8, "d_model": 256, "d_ff": 1024, "outputs": 30,
    "draws": 2, "categorical": False, "pre_norm": False, "gelu": False,
}  # fmt: skip
_OURS: dict[str, Any] = {
    "embedding_size": 128, "layers": 4, "heads": 4, "d_model": 128, "d_ff": 512, "pre_norm": True,
    "gelu": True, "short_conv": True, "classes": 10,
}  # fmt: skip
_MNIST: dict[str, Any] = {
    "pixels": 784, "width": 28, "context": 17, "outputs": 256, "draws": 1, "categorical": True,
    **_OURS,
}  # fmt: skip
_CIFAR10: dict[str, Any] = {
    "pixels": 1024, "width": 32, "channels": 3, "context": 51, "linear_encoding": True,
    "outputs": 100, "draws": 4, "categorical": False,
    **_OURS | {"layers": 8},
}  # fmt: skip

# Networks whose kernels the compile gate compiles: those of all presets, and variants that these
# do not cover. The keys are names for messages.
COMPILED: dict[str, DecodeConfig] = {
    "mnist-paper": DecodeConfig(pixels=784, width=28, layers=8, **_PAPER),
    "cifar10-paper": DecodeConfig(pixels=1024, width=32, steps_per_pixel=3, layers=16, **_PAPER),
    "mnist": DecodeConfig(**_MNIST),
    "cifar10": DecodeConfig(**_CIFAR10),
    "cifar10, widened": DecodeConfig(**_CIFAR10 | {"d_ff": 1280}),
    "heads of 64": DecodeConfig(**_MNIST | {"heads": 2}),
    "a head of 512": DecodeConfig(**_MNIST | {"heads": 1, "d_model": 512}),
    "not convolved": DecodeConfig(**_MNIST | {"short_conv": False}),
}
