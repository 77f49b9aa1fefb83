"""List of kernel launches of one decode step.

A step is a fixed list of launches without synchronisation with the host, so it can be captured in a
CUDA graph: the embedding; for each layer the q, k, v product, the attention state, the output
product and the two products of the feed-forward network, with a short convolution before either
half if the network has one; the head's product; the sampling. ``plan`` builds the list. The
variants to compile (``variants``) and the memory per slot (``allocate_buffers`` on the device
``meta``) are derived from the same list and buffers.

Rows of a batch point to slots. A row whose slot is -1 or whose image is finished neither reads nor
writes any slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.constants import (
    ATTENTION_EPS,
    MIN_LOG_PROB,
    MIN_LOG_SCALE,
    MIN_WARM_LOG_SCALE,
    MIXTURES,
)
from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.decode_config import COMPILED, LEVELS, DecodeConfig
from scanline.kernels.cuda.launch import TYPES, Launch
from scanline.kernels.cuda.matmul import (
    BK,
    BM,
    BN_PROJECT,
    BN_RESIDUAL,
    NORM_EPS,
    normalise_kernel,
    project_kernel,
    residual_kernel,
)
from scanline.kernels.cuda.sampling import sample_kernel
from scanline.kernels.cuda.state import OUTSIDE, convolve_kernel, embed_kernel, state_kernel
from scanline.kernels.cuda.variants import KernelVariant

UNROLLED = 8  # maximum of unrolled tiles of a head's state: 32 take the compiler 18 s
STATE_TILE = 512  # state elements that a warp holds at once: 1,024 took an eighth longer
CONV_FEATURES = 256  # features per program of the convolution
EXACT_WARPS = 8  # warps of a float32 product, which uses no tensor cores
MAX_REGISTERS = 255  # per thread: otherwise the compiler may spill some to fit more blocks
MANY = 4096  # rows from which wider tiles still occupy all multiprocessors
BN_MANY = 256  # columns of the wider tiles: a fifth faster for 10,000 rows of 256 features
WARPS_MANY = 8
SHARED_MANY = 160 << 10  # bytes of shared memory per block that the wider tiles need


def _launch_options(weight: Tensor) -> dict[str, int]:
    """Return the launch options of a product with these weights."""
    exact = weight.dtype == torch.float32
    return {"num_warps": EXACT_WARPS, "maxnreg": MAX_REGISTERS} if exact else {"num_warps": 4}


def plan(
    config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
    overlap: bool = False, many: bool = False,
) -> list[Launch]:  # fmt: skip
    """Return the launches of one step; a pixel runs them ``steps_per_pixel`` times.

    With ``overlap``, a kernel starts while the previous one still runs (``dependent_launch.py``).
    A plan for ``many`` rows has wider tiles but the same order of sums, so its results have the
    same bytes.
    """
    launches = PlanBuilder(config, weights, buffers, many).build()
    return [replace(x, constants={**x.constants, "OVERLAP": overlap}) for x in launches]


class PlanBuilder:
    """Builder of the list of launches.

    The residual stream is in one of two buffers; each addition writes to the other one. ``norm`` is
    the name of the layer norm to apply to the stream when it is read. With pre-norm, products read
    norm(x) and the residual connection reads x. With post-norm, both read norm(x).
    """

    def __init__(
        self, config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor],
        many: bool,
    ) -> None:  # fmt: skip
        self.config, self.weights, self.buffers, self.many = config, weights, buffers, many
        self.launches: list[Launch] = []
        self.stream = [(buffers[f"x{i}"], buffers[f"statistics{i}"]) for i in (0, 1)]
        self.norm: str | None = None
        self.rows: dict[str, Tensor | str | None] = {
            "p_slots": buffers["slots"], "p_positions": buffers["positions"],
            "subpixel": "subpixel",
        }  # fmt: skip
        self.steps = {
            "T": config.pixels, "STEPS_PER_PIXEL": config.steps_per_pixel,
            "FIRST_STEP": config.first_step,
        }  # fmt: skip

    def build(self) -> list[Launch]:
        """Return the launches of all layers."""
        self.embed()
        for layer in range(self.config.layers):
            self.attend(layer)
            self.feed_forward(layer)
        self.finish()
        return self.launches

    def embed(self) -> None:
        """Add the embedding of each row's step."""
        self.launches.append(self.embedding(embed_kernel))

    def embedding(self, kernel: Any) -> Launch:
        """Return the launch of a kernel that embeds a step per row."""
        config, (x, statistics) = self.config, self.stream[0]
        return Launch(
            "embed", kernel,
            {
                **self.rows, "p_canvas": self.buffers["canvas"], "p_label": self.buffers["label"],
                "p_context_index": self.weights["context_index"],
                "p_value_table": self.weights["value_table"],
                "p_step_table": self.weights["step_table"],
                "p_label_table": self.weights["label_table"],
                "p_x": x, "p_statistics": statistics,
            },
            self.steps | {
                "VALUES": config.steps * config.channels, "CONTEXT": config.context,
                "EMBEDDING_SIZE": config.embedding_size,
                "D": config.d_model, "CLASSES": config.classes, "OUTSIDE": OUTSIDE,
                "BP": triton.next_power_of_2(config.context), "BN": BN_RESIDUAL,
            },
            columns=config.tiles, num_warps=1 if config.context == 1 else 4,
        )  # fmt: skip

    def attend(self, layer: int) -> None:
        """Add the first half of a layer up to the heads' outputs."""
        if self.config.pre_norm:
            self.norm = f"{layer}.norm1"
        self._project(layer, 1, "qkv", "qkv", FEATURES=2 * self.config.d_model)
        self.attention(layer)

    def attention(self, layer: int) -> None:
        """Add the attention of a layer, from q, k and v to the heads' outputs."""
        config = self.config
        padded = triton.next_power_of_2(config.head_size)
        warps = 1 if padded <= 32 else 4
        tile = min(padded, max(1, warps * STATE_TILE // padded))
        self.launches.append(Launch(
            f"{layer}.state", state_kernel,
            {
                **self.rows, "p_qkv": self.buffers["qkv"], "p_kv": self.buffers["kv"][layer],
                "p_z": self.buffers["z"][layer], "p_pending": self.buffers["pending"][layer],
                "p_o": self.buffers["o"],
            },
            self.steps | {
                "H": config.heads, "K": config.head_size, "WRITE_INTERVAL": config.write_interval,
                "EPS": ATTENTION_EPS, "BK": padded, "BV": tile, "UNROLLED": UNROLLED,
            },
            programs_per_row=config.heads, num_warps=warps,
        ))  # fmt: skip

    def feed_forward(self, layer: int) -> None:
        """Add the rest of a layer."""
        config = self.config
        self._add_product(f"{layer}.out", "o")
        self.norm = f"{layer}.norm2" if config.pre_norm else f"{layer}.norm1"
        self._project(layer, 2, "linear1", "hidden", ACTIVATION="gelu" if config.gelu else "relu")
        self._add_product(f"{layer}.linear2", "hidden")
        if not config.pre_norm:
            self.norm = f"{layer}.norm2"

    def finish(self) -> None:
        """Add the final norm, the head and the sampling."""
        config = self.config
        if not config.pre_norm:
            self._normalise()
        self.norm = "norm"
        self._product("head", self.stream[0][0], "parameters")
        self.decide()

    def decide(self) -> None:
        """Add the sampling of each row's values from the head's parameters."""
        config = self.config
        self.launches.append(Launch(
            "sample", sample_kernel,
            {
                **self.rows, "p_parameters": self.buffers["parameters"],
                **{f"p_{name}": self.buffers[name] for name in (
                    "canvas", "bits", "known", "seed", "particle", "temperature", "top_p",
                    "guidance", "twin",
                )},
            },
            self.steps | {
                "FIRST_VALUE": config.first_value, "C": config.channels, "DRAWS": config.draws,
                "OUTPUTS": config.outputs, "CATEGORICAL": config.categorical, "LEVELS": LEVELS,
                "M": MIXTURES, "MIN_LOG_SCALE": MIN_LOG_SCALE,
                "MIN_WARM_LOG_SCALE": MIN_WARM_LOG_SCALE, "MIN_LOG_PROB": MIN_LOG_PROB,
                "BM": triton.next_power_of_2(MIXTURES),
            },
            num_warps=1, maxnreg=MAX_REGISTERS,
        ))  # fmt: skip

    def norm_weights(self) -> dict[str, Tensor | None]:
        """Return the weights of the layer norm to apply to the stream, or None for none."""
        return {
            f"p_norm_{part}": None if self.norm is None else self.weights[f"{self.norm}.{part}"]
            for part in ("weight", "bias")
        }

    def _tiles(self, product: str) -> dict[str, int]:
        """Return a matrix product's tile sizes; in float32 the largest that spill no registers."""
        if self.config.dtype_of(product) != torch.float32:
            return {"BM": BM, "BN": BN_PROJECT, "BK": BK}
        return {"BM": BM, "BN": 64, "BK": 32 if self.norm is None else 16}

    def _project(self, layer: int, half: int, name: str, to: str, **epilogue: str | int) -> None:
        """Add a product of the normalised stream, with the short convolution if there is one."""
        x, norm = self.stream[0][0], self.norm
        if self.config.short_conv:
            self.convolve(layer, half)
            x, self.norm = self.buffers["convolved"], None
        self._product(f"{layer}.{name}", x, to, **epilogue)
        self.norm = norm

    def convolve(self, layer: int, half: int) -> None:
        """Add the short convolution of the normalised stream with earlier steps."""
        config, (x, statistics) = self.config, self.stream[0]
        name = f"{layer}.conv{half}"
        width = min(triton.next_power_of_2(config.d_model), CONV_FEATURES)
        self.launches.append(Launch(
            name, convolve_kernel,
            {
                **self.rows, "p_x": x, "p_statistics": statistics, **self.norm_weights(),
                "p_weight": self.weights[f"{name}.weight"],
                "p_ring": self.buffers["ring"][2 * layer + half - 1],
                "p_y": self.buffers["convolved"],
            },
            {
                "T": config.pixels, "STEPS_PER_PIXEL": config.steps_per_pixel,
                "WIDTH": config.width, "RING": config.ring, "D": config.d_model, "EPS": NORM_EPS,
                "BN": width, "BN_STATISTICS": BN_RESIDUAL,
            },
            columns=triton.cdiv(config.d_model, width), num_warps=1,
        ))  # fmt: skip

    def _product(self, name: str, x: Tensor, to: str, **epilogue: str | int) -> None:
        """Add a product. ``epilogue`` are constants of ``project_kernel`` by which f differs."""
        y, weight, tiles = self.buffers[to], self.weights[f"{name}.weight"], self._tiles(name)
        options = _launch_options(weight)
        wide = min(self.config.d_model, weight.shape[0]) >= BN_MANY
        if self.many and wide and weight.dtype != torch.float32:
            tiles, options = tiles | {"BN": BN_MANY}, {"num_warps": WARPS_MANY}
        self.launches.append(Launch(
            name, project_kernel,
            {
                "p_slots": self.buffers["slots"], "p_x": x,
                "p_statistics": None if self.norm is None else self.stream[0][1],
                **self.norm_weights(), "p_weight": weight,
                "p_bias": self.weights[f"{name}.bias"], "p_y": y,
            },
            tiles | {
                "IN": self.config.d_model, "OUT": weight.shape[0], "NORM": self.norm is not None,
                "ACTIVATION": "none", "FEATURES": 0, **epilogue, "EPS": NORM_EPS,
                "BN_STATISTICS": BN_RESIDUAL,
            },
            rows=BM, columns=triton.cdiv(weight.shape[0], tiles["BN"]), **options,
        ))  # fmt: skip

    def _add_product(self, name: str, source: str) -> None:
        """Add a product to the stream, which is normalised first with post-norm."""
        (x, x_statistics), (y, y_statistics) = self.stream
        self.stream.reverse()
        if self.config.pre_norm:
            self.norm = None
        weight = self.weights[f"{name}.weight"]
        self.launches.append(Launch(
            name, residual_kernel,
            {
                "p_slots": self.buffers["slots"], "p_a": self.buffers[source], "p_weight": weight,
                "p_bias": self.weights[f"{name}.bias"], "p_x": x,
                "p_x_statistics": None if self.norm is None else x_statistics,
                **self.norm_weights(), "p_y": y, "p_y_statistics": y_statistics,
            },
            self._tiles(name) | {
                "IN": weight.shape[1], "OUT": self.config.d_model, "NORM": self.norm is not None,
                "EPS": NORM_EPS, "BN": BN_RESIDUAL,
            },
            rows=BM, columns=self.config.tiles, **_launch_options(weight),
        ))  # fmt: skip

    def _normalise(self) -> None:
        """Normalise the stream itself, for two norms in a row (post-norm)."""
        (x, x_statistics), (y, y_statistics) = self.stream
        self.stream.reverse()
        self.launches.append(Launch(
            "norm", normalise_kernel,
            {
                "p_slots": self.buffers["slots"], "p_x": x, "p_x_statistics": x_statistics,
                **self.norm_weights(), "p_y": y, "p_y_statistics": y_statistics,
            },
            {"D": self.config.d_model, "EPS": NORM_EPS, "BM": BM, "BN": BN_RESIDUAL},
            rows=BM, columns=self.config.tiles,
        ))  # fmt: skip


def variants(
    networks: Mapping[str, DecodeConfig] = COMPILED, *, overlap: bool = False
) -> list[KernelVariant]:
    """List the distinct kernel variants that the networks launch, in bf16 and in float32."""
    found: dict[tuple[object, ...], KernelVariant] = {}
    for name, network in networks.items():
        for dtype in (torch.bfloat16, torch.float32):
            config = replace(network, dtype=dtype)
            memory = allocate_weights(config, "meta"), allocate_buffers(config, 2 * BM, "meta")
            for many in (False, True):
                prefix = f"{name}/{TYPES[dtype]}" + "/many" * many
                for launch in plan(config, *memory, overlap, many):
                    variant = launch.variant(prefix)
                    found.setdefault(variant.key, variant)
    return list(found.values())
