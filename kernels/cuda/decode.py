"""One decode step on the device: which kernels run, in which order, on which buffers.

A step is a fixed list of launches without a word from the host in between, so it can be captured
in a CUDA graph: embed; for each layer the q, k, v product, the state, the output product, and the
two products of the feed-forward network; the head's product; the sampling. ``plan`` makes the list;
what is compiled ahead of time (``variants``) and how much memory a slot takes (``allocate`` on the
device ``meta``) are read off the same list and the same buffers.

Rows of a batch point to slots; a row whose slot is -1, or whose image is finished, reads and
writes nothing of any slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from scanline.kernels.attention.definitions import EPS
from scanline.kernels.cuda.head import sample_kernel
from scanline.kernels.cuda.matrix import (
    BK,
    BM,
    BN_PROJECT,
    BN_RESIDUAL,
    normalise_kernel,
    project_kernel,
    residual_kernel,
)
from scanline.kernels.cuda.sizes import COMPILED, LEVELS, Sizes, allocate, allocate_weights
from scanline.kernels.cuda.state import OUTSIDE, embed_kernel, state_kernel
from scanline.kernels.cuda.variants import Variant

MIXTURES = 10
MIN_LOG_SCALE = -7.0
NORM_EPS = 1e-5
STATE_TILE = 4096  # numbers of the state that a program holds at once

_TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.uint8: "u8", torch.int32: "i32",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One kernel with all that it is given; ``run`` starts it for so many rows.

    ``arguments`` are tensors, None, or ``"part"``, which stands for the step's place in the pixel.
    ``rows`` rows and ``columns`` tiles (or heads, beside the rows) make the grid.
    """

    name: str
    kernel: Any  # triton's JITFunction, which has no type stubs
    arguments: Mapping[str, Tensor | str | None]
    constants: Mapping[str, object]
    rows: int = 1
    beside: int = 1
    columns: int = 1
    num_warps: int = 4
    num_stages: int = 3

    def run(self, rows: int, part: int) -> None:
        arguments = {n: part if isinstance(x, str) else x for n, x in self.arguments.items()}
        grid = (triton.cdiv(rows, self.rows) * self.beside, self.columns)
        self.kernel[grid](
            **arguments, **self.constants, num_warps=self.num_warps, num_stages=self.num_stages
        )

    def variant(self, prefix: str) -> Variant:
        """Give what this launch makes Triton compile."""
        signature: dict[str, str] = {}
        constants = dict(self.constants)
        for name, value in self.arguments.items():
            if value is None:
                constants[name] = None
            elif isinstance(value, str):
                signature[name] = "i32"
            else:
                aligned = value.storage_offset() * value.element_size() % 16 == 0
                signature[name] = f"*{_TYPES[value.dtype]}" + ":16" * aligned
        name = f"{self.kernel.__name__}/{prefix}/{self.name}"
        return Variant(name, self.kernel, signature, constants, self.num_warps, self.num_stages)


def plan(s: Sizes, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> list[Launch]:
    """Lay out one step of the network; run it for each part of a pixel."""
    D, H, K = s.d_model, s.heads, s.head_size
    launches: list[Launch] = []
    # The residual stream is in one of two places, the product after goes to the other.
    stream = [(buffers[f"x{i}"], buffers[f"statistics{i}"]) for i in (0, 1)]
    rows = {"p_slots": buffers["slots"], "p_positions": buffers["positions"]}
    step: dict[str, Tensor | str | None] = {**rows, "part": "part"}
    place = {"T": s.pixels, "PARTS": s.parts, "FIRST": s.first}

    def norm(name: str | None) -> dict[str, Tensor | None]:
        return {
            f"p_norm_{part}": None if name is None else weights[f"{name}.{part}"]
            for part in ("weight", "bias")
        }

    # Without tensor cores a tile takes more registers: these are the largest that do not spill.
    exact = s.dtype == torch.float32
    wide, deep = (64, 32) if exact else (BN_PROJECT, BK)
    num_warps = 8 if exact else 4

    def project(name: str, to: str, by: str | None, activation: str, features: int = 0) -> None:
        x, statistics = stream[0]
        y, weight = buffers[to], weights[f"{name}.weight"]
        launches.append(Launch(
            name, project_kernel,
            {
                "p_slots": buffers["slots"], "p_x": x,
                "p_statistics": None if by is None else statistics, **norm(by),
                "p_weight": weight, "p_bias": weights[f"{name}.bias"], "p_y": y,
            },
            {
                "IN": D, "OUT": weight.shape[0], "NORM": by is not None,
                "ACTIVATION": activation, "FEATURES": features, "EPS": NORM_EPS,
                "BM": BM, "BN": wide, "BK": deep, "BN_STATISTICS": BN_RESIDUAL,
            },
            rows=BM, columns=triton.cdiv(weight.shape[0], wide), num_warps=num_warps,
        ))  # fmt: skip

    def residual(name: str, of: str, by: str | None) -> None:
        (x, x_statistics), (y, y_statistics) = stream
        stream.reverse()
        weight = weights[f"{name}.weight"]
        launches.append(Launch(
            name, residual_kernel,
            {
                "p_slots": buffers["slots"], "p_a": buffers[of], "p_weight": weight,
                "p_bias": weights[f"{name}.bias"], "p_x": x,
                "p_x_statistics": None if by is None else x_statistics, **norm(by),
                "p_y": y, "p_y_statistics": y_statistics,
            },
            {
                "IN": weight.shape[1], "OUT": D, "NORM": by is not None, "EPS": NORM_EPS,
                "BM": BM, "BN": BN_RESIDUAL, "BK": deep,
            },
            rows=BM, columns=s.tiles, num_warps=num_warps,
        ))  # fmt: skip

    x, statistics = stream[0]
    launches.append(Launch(
        "embed", embed_kernel,
        {
            **step, "p_canvas": buffers["canvas"], "p_label": buffers["label"],
            "p_sources": weights["sources"], "p_table": weights["table"],
            "p_code": weights["code"], "p_label_table": weights["label"],
            "p_x": x, "p_statistics": statistics,
        },
        place | {
            "VALUES": s.steps * s.channels, "PLACES": s.places, "SIZE": s.code, "D": D,
            "CLASSES": s.classes, "OUTSIDE": OUTSIDE, "BP": triton.next_power_of_2(s.places),
            "BN": BN_RESIDUAL,
        },
        columns=s.tiles,
    ))  # fmt: skip
    # Pre-norm: the products see norm(x), and x itself goes on. Post-norm: both see norm(x), where
    # x is what the product before added up.
    side = triton.next_power_of_2(K)
    tile = min(side, max(1, STATE_TILE // side))
    before: str | None = None
    for layer in range(s.layers):
        attention = f"{layer}.norm1" if s.pre_norm else before
        project(f"{layer}.qkv", "qkv", attention, "none", features=2 * D)
        launches.append(Launch(
            f"{layer}.state", state_kernel,
            {
                **step, "p_qkv": buffers["qkv"], "p_kv": buffers["kv"][layer],
                "p_z": buffers["z"][layer], "p_waiting": buffers["waiting"][layer],
                "p_o": buffers["o"],
            },
            place | {"H": H, "K": K, "DELAY": s.delay, "EPS": EPS, "BK": side, "BV": tile},
            beside=H, num_warps=1 if side * tile <= 1024 else 4,
        ))  # fmt: skip
        residual(f"{layer}.out", "o", None if s.pre_norm else before)
        between = f"{layer}.norm2" if s.pre_norm else f"{layer}.norm1"
        project(f"{layer}.linear1", "hidden", between, "gelu" if s.gelu else "relu")
        residual(f"{layer}.linear2", "hidden", None if s.pre_norm else between)
        before = f"{layer}.norm2"
    if not s.pre_norm:
        (x, x_statistics), (y, y_statistics) = stream
        stream.reverse()
        launches.append(Launch(
            "norm", normalise_kernel,
            {
                "p_slots": buffers["slots"], "p_x": x, "p_x_statistics": x_statistics,
                **norm(before), "p_y": y, "p_y_statistics": y_statistics,
            },
            {"D": D, "EPS": NORM_EPS, "BM": BM, "BN": BN_RESIDUAL},
            rows=BM, columns=s.tiles,
        ))  # fmt: skip
    project("head", "parameters", "norm", "none")
    launches.append(Launch(
        "sample", sample_kernel,
        {
            **step, "p_parameters": buffers["parameters"], "p_tables": weights["tables"],
            **{f"p_{name}": buffers[name] for name in (
                "canvas", "bits", "known", "noise", "temperature",
            )},
        },
        place | {
            "FIRST_VALUE": s.first_value, "C": s.channels, "DRAWS": s.draws,
            "OUTPUTS": s.outputs, "CATEGORICAL": s.categorical, "LEVELS": LEVELS,
            "M": MIXTURES, "MIN_LOG_SCALE": MIN_LOG_SCALE,
            "BM": triton.next_power_of_2(MIXTURES), "BL": 32,
        },
        num_warps=1,
    ))  # fmt: skip
    return launches


def variants(networks: Mapping[str, Sizes] = COMPILED) -> list[Variant]:
    """Give every kernel that these networks launch, each once, in bf16, and in float32 too."""
    found: dict[tuple[object, ...], Variant] = {}
    for name, sizes in networks.items():
        for dtype in (torch.bfloat16, torch.float32):
            s = replace(sizes, dtype=dtype)
            launches = plan(s, allocate_weights(s, "meta"), allocate(s, 2 * BM, "meta"))
            for variant in (launch.variant(f"{name}/{_TYPES[dtype]}") for launch in launches):
                same = (
                    variant.kernel.__name__, *sorted(variant.signature.items()),
                    *sorted((k, repr(v)) for k, v in variant.constants.items()),
                )  # fmt: skip
                found.setdefault(same, variant)
    return list(found.values())


def run(launches: Sequence[Launch], rows: int, pixels: int, parts: int) -> None:
    """Start ``pixels`` pixels of the first ``rows`` rows."""
    for _ in range(pixels):
        for part in range(parts):
            for launch in launches:
                launch.run(rows, part)
