"""Launcher of the fused decode kernel (``decode.cu``): configurations, weights and arguments."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scanline.kernels.constants import MIN_LOG_PROB, MIN_LOG_SCALE, MIN_WARM_LOG_SCALE
from scanline.kernels.cuda.decode_config import COMPILED, DecodeConfig
from scanline.kernels.cuda.fused.driver import DriverError, Kernel, compile_cached, load_kernel
from scanline.kernels.cuda.variants import CudaSource
from scanline.kernels.short_conv import TAPS

log = logging.getLogger("scanline.decoder")

FOLDER = Path(__file__).parent
SOURCES = (
    "intrinsics.h", "layout.h", "noise.h", "distribution.h", "head_sampling.h", "residual_stream.h",
    "row_sampling.h",
    "matmul.h", "attention.h", "weights.h", "decode.cu",
)  # fmt: skip
HEAD_SIZE, CHUNK = 32, 128  # head size of the kernel, and inputs per partial sum
STACK = 256  # bytes per thread that may spill to device memory: addresses between products


@dataclass(frozen=True)
class LaunchConfig:
    """Distribution of the rows of a batch over clusters and blocks.

    Attributes:
        cluster: Blocks per cluster.
        rows: Maximum number of rows per cluster.
        warps: Warps per block.
        head_groups: Groups in which a block processes its heads one after another, to fit into
            shared memory.
        ff_slices: Slices in which a block processes its hidden features one after another.
        states_per_warp: Attention states that a warp holds at a time.
        stage_weights: Whether a layer's weights are copied to shared memory in advance.
    """

    cluster: int
    rows: int
    warps: int
    head_groups: int = 1
    ff_slices: int = 1
    states_per_warp: int = 1
    stage_weights: bool = False

    def fits(self, s: DecodeConfig) -> bool:
        """Return True if the kernel supports this configuration for a network."""
        halved = self.cluster == 2 * s.heads and self.rows == 8  # two blocks share a head
        return (
            (halved or s.heads % (self.cluster * self.head_groups) == 0)
            and s.d_model % (16 * self.cluster) == 0
            and s.d_ff % (16 * self.cluster) == 0
            and s.d_ff % (self.ff_slices * CHUNK) == 0
            and (self.cluster == 1 or self._out_chunks(s) <= self.warps)
            and (not self.stage_weights or self._max_chunks(s) <= self.warps)
        )

    def _out_chunks(self, s: DecodeConfig) -> int:
        """Return the chunks of attention's output product per block; a warp takes at most one."""
        return s.d_model // 16 // self.cluster * (s.d_model // CHUNK)

    def _max_chunks(self, s: DecodeConfig) -> int:
        """Return the maximum number of chunks (16 outputs × ``CHUNK`` inputs) per block."""
        heads = 6 * s.heads // self.cluster if self.cluster <= s.heads else 5
        model_chunks, hidden_chunks = s.d_model // CHUNK, s.d_ff // CHUNK
        return max(
            heads * model_chunks,
            s.d_ff // 16 // self.cluster * model_chunks * (3 if _splits_bf16(s) else 1),
            s.d_model // 16 // self.cluster * hidden_chunks,
        )

    def partition(self, rows: int, max_clusters: int) -> tuple[int, int]:
        """Return the number of clusters and of rows per cluster for a batch.

        ``max_clusters`` clusters run at the same time. The number of rows per cluster is even, so
        that a guided image and its twin, which start at an even row, stay in one cluster.
        """
        rows_per_cluster = min(-(-rows // max_clusters), self.rows)
        rows_per_cluster += rows_per_cluster % 2
        return -(-rows // rows_per_cluster), rows_per_cluster


# From few rows to many: the first configuration with room for a batch is used. With clusters of one
# block, an H200 drew 10,000 images a sixth faster with one block per multiprocessor than with two,
# which have half as many registers.
LAUNCH_CONFIGS = (
    LaunchConfig(cluster=16, rows=8, warps=12, stage_weights=True),
    LaunchConfig(cluster=8, rows=8, warps=12, stage_weights=True),
    LaunchConfig(cluster=8, rows=8, warps=16), LaunchConfig(cluster=8, rows=16, warps=16),
    LaunchConfig(cluster=4, rows=16, warps=16),
    LaunchConfig(cluster=2, rows=16, warps=16),
    LaunchConfig(cluster=1, rows=32, warps=8, head_groups=2, ff_slices=4, states_per_warp=2),
    LaunchConfig(cluster=1, rows=64, warps=8, head_groups=4, ff_slices=4, states_per_warp=2),
    LaunchConfig(cluster=1, rows=80, warps=8, head_groups=4, ff_slices=4, states_per_warp=2),
)  # fmt: skip


def _splits_bf16(s: DecodeConfig) -> bool:
    """Return True if the first feed-forward product and the head need more bits than bf16."""
    return any(s.dtype_of(name) != s.dtype for name in ("0.linear1", "head"))


def source() -> str:
    """Return the source code of the kernel."""
    return "".join((FOLDER / name).read_text() for name in SOURCES)


def defines(s: DecodeConfig, config: LaunchConfig) -> dict[str, int | float]:
    """Return the macros with which the source is compiled."""
    return {
        "D": s.d_model, "FF": s.d_ff, "HEADS": s.heads, "LAYERS": s.layers, "OUTPUTS": s.outputs,
        "PRE": s.pre_norm, "GELU": s.gelu, "PIXELS": s.pixels,
        "STEPS_PER_PIXEL": s.steps_per_pixel, "FIRST_STEP": s.first_step,
        "CHANNELS": s.channels, "CONTEXT": s.context,
        "EMBEDDING_SIZE": s.embedding_size, "CLASSES": s.classes,
        "STEPS_PER_ROW": s.steps_per_row, "RING": s.ring,
        "WRITE_INTERVAL": s.write_interval, "DRAWS": s.draws,
        "CATEGORICAL": s.categorical, "FIRST_VALUE": s.first_value, "MIN_LOG_PROB": MIN_LOG_PROB,
        "MIN_LOG_SCALE": MIN_LOG_SCALE, "MIN_WARM_LOG_SCALE": MIN_WARM_LOG_SCALE,
        "CLUSTER": config.cluster, "ROWS": config.rows, "WARPS": config.warps,
        "HEAD_GROUPS": config.head_groups, "FF_SLICES": config.ff_slices,
        "STATES_PER_WARP": config.states_per_warp, "STAGE_WEIGHTS": config.stage_weights,
        "SPLIT_BF16": _splits_bf16(s),
    }  # fmt: skip


def shared_bytes(s: DecodeConfig, config: LaunchConfig) -> int:
    """Return the bytes of shared memory per block, with the layout of ``layout.h``."""
    outputs = -(-s.outputs // 16) * 16
    heads = max(s.heads // (config.cluster * config.head_groups), 1)
    scratch = max(96 * heads + 8, s.d_ff // config.ff_slices + 8, 2 * outputs)
    streams = 2 if config.cluster > 1 else 1
    inputs = (3 if _splits_bf16(s) else 2) * (s.d_model + 8)
    per_row = 4 * (s.d_model + 4) * streams + 2 * (inputs + scratch) + 16
    if config.cluster == 1:
        biases = 5 * s.d_model + s.d_ff
        return -(-(config.rows * per_row + 4 * biases) // 16) * 16
    per_row += 4 * (7 + s.draws + s.channels)  # a RowSample
    barriers = 8 * (5 + (4 * config.warps if config.stage_weights else 0))
    vectors = 9 * s.d_model + s.d_ff + (2 * TAPS * s.d_model if s.short_conv else 0)
    last = 2 * s.d_model + outputs
    own = (
        config.rows * per_row
        + barriers
        + 4 * (2 * config.warps * config.rows * 20 + 2 * vectors + last)
    )
    own = -(-own // 16) * 16
    if not config.stage_weights:
        return own
    qkv = 3 * s.d_model // config.cluster if config.cluster <= s.heads else 80
    forward = s.d_model * s.d_ff * (4 if _splits_bf16(s) else 2)
    staged = qkv * s.d_model + (s.d_model**2 + forward) // config.cluster
    return own + 2 * staged


def supported_configs(
    s: DecodeConfig,
    launch_configs: Sequence[LaunchConfig],
    *,
    capability: tuple[int, int],
    shared: int,
) -> list[LaunchConfig]:
    """Return the configurations that fit a network, a device and ``shared`` bytes per block.

    If several have the same number of blocks and rows, only the first is returned.
    """
    found: dict[tuple[int, int], LaunchConfig] = {}
    for config in launch_configs:
        clusters = config.cluster == 1 or capability >= (9, 0)
        if clusters and config.fits(s) and shared_bytes(s, config) <= shared:
            found.setdefault((config.cluster, config.rows), config)
    return list(found.values())


def variants(capability: tuple[int, int], shared: int) -> list[CudaSource]:
    """List the kernel of each network in each configuration that a device supports."""
    text = source()
    return [
        CudaSource(
            f"fused_decode/{name}/{config.cluster} x {config.rows}", text, defines(s, config),
            shared_bytes(s, config), STACK,
        )
        for name, s in COMPILED.items() if unsupported_reason(s) is None
        for config in supported_configs(s, LAUNCH_CONFIGS, capability=capability, shared=shared)
    ]  # fmt: skip


def unsupported_reason(s: DecodeConfig) -> str | None:
    """Return why the fused kernel does not support a network, or None if it does."""
    if s.dtype != torch.bfloat16:
        return "it computes in bf16 only"
    if s.head_size != HEAD_SIZE:
        return f"the head size must be {HEAD_SIZE}, not {s.head_size}"
    if s.d_model % CHUNK or s.d_ff % CHUNK:
        return f"d_model {s.d_model} and d_ff {s.d_ff} must be multiples of {CHUNK}"
    return None


def mma_fragments(weight: Tensor) -> Tensor:
    """Reorder a matrix ``[16 m, 16 k]`` to the register layout of ``mma.m16n8k16``'s operand A.

    Returns:
        One fragment per 16 × 16 tile, with 8 numbers per lane: ``[m, k, 32, 8]``.
    """
    m, k = weight.shape[0] // 16, weight.shape[1] // 16
    parts = weight.view(m, 2, 8, k, 2, 4, 2)  # tile, half, lane; tile, half, lane, number
    return parts.permute(0, 3, 2, 5, 4, 1, 6).reshape(m, k, 32, 8)


def _by_head(qkv: Tensor, heads: int) -> Tensor:
    """Reorder the rows of q, k and v head by head."""
    return qkv.view(3, heads, HEAD_SIZE, *qkv.shape[1:]).transpose(0, 1).flatten(0, 2)


def _pad_rows(head: Tensor) -> Tensor:
    """Pad with zero rows to a multiple of 16."""
    return torch.cat([head, head.new_zeros(-len(head) % 16, *head.shape[1:])])


def pack(s: DecodeConfig, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the matrices in bf16 and the vectors in float32, in the order of reading."""
    matrices, vectors = [], []
    for i in range(s.layers):
        matrices += [
            _by_head(weights[f"{i}.qkv.weight"], s.heads),
            *(weights[f"{i}.{name}.weight"] for name in ("out", "linear1", "linear2")),
        ]
        vectors += [
            _by_head(weights[f"{i}.qkv.bias"], s.heads),
            *(weights[f"{i}.{name}.bias"] for name in ("out", "linear1", "linear2")),
            *(weights[f"{i}.{norm}.{kind}"] for norm in ("norm1", "norm2")
              for kind in ("weight", "bias")),
            *(weights[f"{i}.conv{half}.weight"].flatten() for half in (1, 2) if s.short_conv),
        ]  # fmt: skip
    matrices.append(_pad_rows(weights["head.weight"]))
    if _splits_bf16(s):
        split = matrices[-1], weights["0.linear1.weight"]
        matrices += [matrix - matrix.bfloat16().float() for matrix in split]  # the low parts
    vectors += [weights["norm.weight"], weights["norm.bias"], _pad_rows(weights["head.bias"])]
    return torch.cat([mma_fragments(x.bfloat16()).flatten() for x in matrices]), torch.cat(vectors)


_POINTERS = (
    "packed", "vectors", "slots", "positions", "canvas", "label", "context_index", "value_table",
    "step_table", "label_table", "kv", "z", "pending", "ring", "channel_tables", "seed",
    "particle", "temperature", "top_p", "guidance", "twin", "known", "bits",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """Arguments of the kernel: pointers to device memory, and sizes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int) for name in ("rows", "rows_per_cluster", "slot_count", "pixels")),
    )


def arguments(
    memory: Mapping[str, Tensor], rows: int, rows_per_cluster: int, pixels: int
) -> Arguments:
    """Return the arguments of a launch."""
    pointers = [memory[name].data_ptr() for name in _POINTERS]
    return Arguments(*pointers, rows, rows_per_cluster, len(memory["positions"]), pixels)


def kernel_memory(
    s: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return all tensors that the kernel reads and writes, by the names of its arguments."""
    packed, vectors = pack(s, weights)
    return dict(buffers) | {
        "packed": packed, "vectors": vectors,
        **{name: weights[name] for name in (
            "context_index", "value_table", "step_table", "label_table", "channel_tables",
        )},
    }  # fmt: skip


class FusedDecode:
    """The fused decode kernel of a network on the current device, in all configurations that fit.

    Raises:
        CompileError: The kernel cannot be compiled.
        DriverError: The device cannot run the kernel in any configuration.
    """

    def __init__(
        self, s: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *,
        capability: tuple[int, int], shared: int,
        launch_configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
    ) -> None:  # fmt: skip
        self._memory = kernel_memory(s, weights, buffers)
        text = source()

        def compiled(config: LaunchConfig) -> bytes:
            return compile_cached(text, "decode.cu", defines(s, config), capability)

        launch_configs = supported_configs(s, launch_configs, capability=capability, shared=shared)
        if not launch_configs:
            raise DriverError(
                f"the kernel needs more than the GPU's {shared:,} bytes of shared memory per block"
            )
        with ThreadPoolExecutor() as threads:
            binaries = list(threads.map(compiled, launch_configs))
        self._kernels: list[tuple[LaunchConfig, Kernel, int]] = []
        message = "the GPU cannot run any of its blocks"
        for config, binary in zip(launch_configs, binaries, strict=True):
            try:
                kernel = load_kernel(
                    binary, "fused_decode", torch.cuda.current_device(), threads=32 * config.warps,
                    shared=shared_bytes(s, config), cluster=config.cluster,
                )  # fmt: skip
                max_clusters = kernel.max_active_clusters()
            except DriverError as error:  # a MIG slice may be too small for a large cluster
                message = str(error)
                log.warning("the GPU does not support %s: %s", config, message)
                continue
            if max_clusters:
                self._kernels.append((config, kernel, max_clusters))
        if not self._kernels:
            raise DriverError(f"no launch configuration works on this GPU: {message}")

    def run(self, rows: int, pixels: int) -> None:
        """Draw ``pixels`` pixels of the first ``rows`` rows; guided images start at even rows."""
        fitting = [x for x in self._kernels if rows <= x[2] * x[0].rows]
        config, kernel, max_clusters = fitting[0] if fitting else self._kernels[-1]
        clusters, rows_per_cluster = config.partition(rows, max_clusters)
        # With many rows, one launch per pixel lets blocks read the weights at the same time: 4 %
        # faster on an H200 than one launch, in which blocks drift apart.
        launches, pixels = (pixels, 1) if config.cluster == 1 else (1, pixels)
        launch_arguments = arguments(self._memory, rows, rows_per_cluster, pixels)
        for _ in range(launches):
            kernel.launch(clusters, launch_arguments)
