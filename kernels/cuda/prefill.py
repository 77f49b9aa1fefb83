"""Prefill of known pixels on a CUDA device: all their steps in parallel.

A pass runs the matrix products of a decode step with one row per step of several images, and the
causal kernel of linear attention. It writes the bits of the known pixels and the state after them,
in the format of the decode step, without pending entries. Every tile size and order of sums is
fixed, so an image's results do not depend on the other images of the pass. They differ in the last
bits from those of single steps, because the causal kernel sums in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.constants import MIN_LOG_SCALE, MIXTURES
from scanline.kernels.cuda.attention import triton_linear_attention
from scanline.kernels.cuda.available import MAX_HEAD_SIZE
from scanline.kernels.cuda.buffers import allocate_buffers, allocate_scratch, allocate_weights
from scanline.kernels.cuda.decode_config import COMPILED, LEVELS, DecodeConfig
from scanline.kernels.cuda.decode_plan import MAX_REGISTERS, PlanBuilder
from scanline.kernels.cuda.launch import TYPES, Launch
from scanline.kernels.cuda.matmul import BM, BN_RESIDUAL, NORM_EPS
from scanline.kernels.cuda.prefill_kernels import (
    prefill_convolve_kernel,
    prefill_embed_kernel,
    score_kernel,
)
from scanline.kernels.cuda.variants import KernelVariant

MAX_ROWS = 8192  # rows of a pass, unless one image has more
CONV_ROWS, CONV_FEATURES, CONV_WARPS = 16, 128, 4  # tile of the convolution


def supports_prefill(config: DecodeConfig) -> bool:
    """Return True if the causal kernel supports the network's heads."""
    return config.head_size <= MAX_HEAD_SIZE


def rows_per_image(config: DecodeConfig, pixels: int) -> int:
    """Return the rows of an image with this number of known pixels, in whole tiles."""
    return -(-pixels * config.steps_per_pixel // BM) * BM


def scratch_rows(config: DecodeConfig, slots: int) -> int:
    """Return the rows of a pass for a decoder with this number of slots."""
    whole = rows_per_image(config, config.pixels)
    return max(whole, min(MAX_ROWS, slots * whole))


def allocate_prefill(
    config: DecodeConfig, slots: int, device: torch.device | str
) -> dict[str, Tensor]:
    """Allocate the scratch memory of a pass, uninitialised."""
    rows = scratch_rows(config, slots)
    return allocate_scratch(config, rows, device) | {
        "lengths": torch.empty(rows // BM, dtype=torch.int32, device=device),
        "unmodelled": torch.empty(rows, dtype=torch.bool, device=device),
    }


@dataclass(frozen=True)
class _Attention:
    """Attention of a layer, which also writes the state after the known steps."""

    config: DecodeConfig
    buffers: Mapping[str, Tensor]
    layer: int

    def run(self, rows: int, steps: int, slots: Tensor) -> None:
        """Attend in the images of a pass, which are in ``slots: int64 [B]``."""
        config, buffers, B = self.config, self.buffers, rows // steps
        # Keys of 0 add nothing to the sums. The queries and values are cleared too, because rows
        # without a step may hold NaN.
        qkv = buffers["qkv"][:rows]
        qkv.masked_fill_(buffers["unmodelled"][:rows, None], 0)
        q, k, v = qkv.view(B, steps, 3, config.heads, config.head_size).unbind(2)
        o, after = triton_linear_attention(q, k, v)
        buffers["o"][:rows].copy_(o.view(rows, -1))
        for name, sums in zip(("kv", "z"), after, strict=True):
            buffers[name][self.layer].index_copy_(0, slots, sums)


class _PrefillBuilder(PlanBuilder):
    """Builder of the launches of a pass: those of a decode step, with other kernels for the state.

    Attention is left out. ``attention_at`` has the number of launches before that of each layer.
    """

    def __init__(
        self, config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        super().__init__(config, weights, buffers, many=False)
        self.rows = {"p_slots": buffers["slots"], "steps": "steps"}
        self.steps = {"FIRST_STEP": config.first_step}
        self.attention_at: list[int] = []

    def embed(self) -> None:
        self.launches.append(self.embedding(prefill_embed_kernel))

    def attention(self, layer: int) -> None:
        self.attention_at.append(len(self.launches))

    def convolve(self, layer: int, half: int) -> None:
        config, (x, statistics) = self.config, self.stream[0]
        name = f"{layer}.conv{half}"
        width = min(triton.next_power_of_2(config.d_model), CONV_FEATURES)
        self.launches.append(Launch(
            name, prefill_convolve_kernel,
            {
                **self.rows, "p_lengths": self.buffers["lengths"], "p_x": x,
                "p_statistics": statistics, **self.norm_weights(),
                "p_weight": self.weights[f"{name}.weight"],
                "p_ring": self.buffers["ring"][2 * layer + half - 1],
                "p_y": self.buffers["convolved"],
            },
            {
                "WIDTH": config.width, "RING": config.ring, "D": config.d_model, "EPS": NORM_EPS,
                "BM": CONV_ROWS, "BN": width, "BN_STATISTICS": BN_RESIDUAL,
            },
            rows=CONV_ROWS, columns=triton.cdiv(config.d_model, width), num_warps=CONV_WARPS,
        ))  # fmt: skip

    def decide(self) -> None:
        config = self.config
        self.launches.append(Launch(
            "score", score_kernel,
            {
                **self.rows, "p_parameters": self.buffers["parameters"],
                "p_canvas": self.buffers["canvas"], "p_bits": self.buffers["bits"],
            },
            self.steps | {
                "T": config.pixels, "STEPS_PER_PIXEL": config.steps_per_pixel,
                "C": config.channels, "OUTPUTS": config.outputs,
                "CATEGORICAL": config.categorical, "LEVELS": LEVELS, "M": MIXTURES,
                "MIN_LOG_SCALE": MIN_LOG_SCALE, "BM": triton.next_power_of_2(MIXTURES),
            },
            num_warps=1, maxnreg=MAX_REGISTERS,
        ))  # fmt: skip


def plan(
    config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
    overlap: bool = False,
) -> tuple[list[Launch], list[int]]:  # fmt: skip
    """Return the launches of a pass, and the number of launches before each layer's attention.

    ``buffers`` has those of the decoder, replaced by those of ``allocate_prefill``.
    """
    builder = _PrefillBuilder(config, weights, buffers)
    launches = [replace(x, constants={**x.constants, "OVERLAP": overlap}) for x in builder.build()]
    return launches, builder.attention_at


class Prefill:
    """Prefill of a decoder's slots.

    Args:
        config: The network.
        weights: Its weights (``allocate_weights``).
        buffers: Inputs and state of the decoder's slots (``allocate_buffers``).
        slots: Number of slots.
        overlap: Whether a kernel may start before the previous one has ended.
    """

    def __init__(
        self, config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
        slots: int, overlap: bool = False,
    ) -> None:  # fmt: skip
        device = buffers["canvas"].device
        self._config = config
        scratch = allocate_prefill(config, slots, device)
        for buffer in scratch.values():
            buffer.zero_()
        self._buffers = {**buffers, **scratch}
        self._rows = scratch_rows(config, slots)
        launches, attention_at = plan(config, weights, self._buffers, overlap)
        ends = [*attention_at, len(launches)]
        self._parts: list[Launch | _Attention] = [*launches[: ends[0]]]
        for layer in range(config.layers):
            attention = _Attention(config, self._buffers, layer)
            self._parts += [attention, *launches[ends[layer] : ends[layer + 1]]]

    def passes(self, lengths: NDArray[np.integer]) -> Iterator[NDArray[np.int64]]:
        """Divide images with ``lengths`` known pixels into passes of similar lengths.

        Yields:
            Indices of the images of a pass, the longest first.
        """
        order = np.argsort(-lengths.astype(np.int64), kind="stable")
        while len(order):
            rows = rows_per_image(self._config, int(lengths[order[0]]))
            images = max(1, self._rows // rows)
            yield order[:images]
            order = order[images:]

    def run(self, slots: Tensor, lengths: Tensor, longest: int) -> None:
        """Queue one pass on the current stream.

        The slots' inputs must be set. Their positions, bits and state are overwritten.

        Args:
            slots: Slots of the images, int64 ``[B]``.
            lengths: Number of known pixels of each, at least 1, int64 ``[B]``.
            longest: The largest of ``lengths``.
        """
        config, buffers = self._config, self._buffers
        steps, known = rows_per_image(config, longest), lengths * config.steps_per_pixel
        rows, step = len(slots) * steps, torch.arange(steps, device=slots.device)
        beyond = step >= known.unsqueeze(1)
        rows_of_slots = torch.where(beyond, -1, slots.unsqueeze(1))
        buffers["slots"][:rows].view(-1, steps).copy_(rows_of_slots)
        buffers["unmodelled"][:rows].view(-1, steps).copy_(beyond | (step < config.first_step))
        buffers["lengths"][: len(slots)].copy_(known)
        buffers["pending"].index_fill_(1, slots, 0)  # entries of 0 add nothing to the sums
        for part in self._parts:
            if isinstance(part, Launch):
                part.run(rows, steps)
            else:
                part.run(rows, steps, slots)
        buffers["positions"].index_copy_(0, slots, lengths.to(torch.int32))

    def compile(self) -> None:
        """Compile all kernels, by prefilling one pixel of slot 0."""
        device = self._buffers["canvas"].device
        self.run(torch.zeros(1, dtype=torch.int64, device=device),
                 torch.ones(1, dtype=torch.int64, device=device), 1)  # fmt: skip


def variants(
    networks: Mapping[str, DecodeConfig] = COMPILED, *, overlap: bool = False
) -> list[KernelVariant]:
    """List the kernel variants that only a prefill launches, in bf16 and in float32.

    ``decode_plan.variants`` lists its other kernels, and ``attention.variants`` the causal one.
    """
    found: dict[tuple[object, ...], KernelVariant] = {}
    own = (prefill_embed_kernel, prefill_convolve_kernel, score_kernel)
    for name, network in networks.items():
        for dtype in (torch.bfloat16, torch.float32):
            config = replace(network, dtype=dtype)
            buffers = allocate_buffers(config, 1, "meta") | allocate_prefill(config, 1, "meta")
            launches, _ = plan(config, allocate_weights(config, "meta"), buffers, overlap)
            for launch in launches:
                variant = launch.variant(f"{name}/{TYPES[dtype]}")
                if variant.kernel in own:
                    found.setdefault(variant.key, variant)
    return list(found.values())
