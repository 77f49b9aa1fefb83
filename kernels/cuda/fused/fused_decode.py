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

from scanline.kernels.constants import (
    ATTENTION_EPS,
    MIN_LOG_PROB,
    MIN_LOG_SCALE,
    MIN_WARM_LOG_SCALE,
)
from scanline.kernels.cuda.decode_config import COMPILED, DecodeConfig
from scanline.kernels.cuda.fused.driver import (
    CompileError,
    DriverError,
    Kernel,
    compile_cached,
    load_kernel,
)
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

    def fits(self, config: DecodeConfig) -> bool:
        """Return True if the kernel supports this configuration for a network."""
        halved = self.cluster == 2 * config.heads and self.rows == 8  # two blocks share a head
        return (
            (halved or config.heads % (self.cluster * self.head_groups) == 0)
            and config.d_model % (16 * self.cluster) == 0
            and config.d_ff % (16 * self.cluster) == 0
            and config.d_ff % (self.ff_slices * CHUNK) == 0
            and (self.cluster == 1 or self._out_chunks(config) <= self.warps)
            and (not self.stage_weights or self._max_chunks(config) <= self.warps)
        )

    def _out_chunks(self, config: DecodeConfig) -> int:
        """Return the chunks of attention's output product per block; a warp takes at most one."""
        return config.d_model // 16 // self.cluster * (config.d_model // CHUNK)

    def _max_chunks(self, config: DecodeConfig) -> int:
        """Return the maximum number of chunks (16 outputs × ``CHUNK`` inputs) per block."""
        heads = 6 * config.heads // self.cluster if self.cluster <= config.heads else 5
        model_chunks, hidden_chunks = config.d_model // CHUNK, config.d_ff // CHUNK
        return max(
            heads * model_chunks,
            config.d_ff // 16 // self.cluster * model_chunks * (3 if _splits_bf16(config) else 1),
            config.d_model // 16 // self.cluster * hidden_chunks,
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
# which have half as many registers. Those with five slices are for 640 or 1,280 hidden features.
LAUNCH_CONFIGS = (
    LaunchConfig(cluster=16, rows=8, warps=12, stage_weights=True),
    LaunchConfig(cluster=8, rows=8, warps=12, stage_weights=True),
    LaunchConfig(cluster=8, rows=8, warps=16), LaunchConfig(cluster=8, rows=16, warps=16),
    LaunchConfig(cluster=4, rows=16, warps=16),
    LaunchConfig(cluster=2, rows=16, warps=16),
    LaunchConfig(cluster=1, rows=32, warps=8, head_groups=2, ff_slices=5, states_per_warp=2),
    LaunchConfig(cluster=1, rows=64, warps=8, head_groups=4, ff_slices=5, states_per_warp=2),
    LaunchConfig(cluster=1, rows=80, warps=8, head_groups=4, ff_slices=5, states_per_warp=2),
    LaunchConfig(cluster=1, rows=32, warps=8, head_groups=2, ff_slices=4, states_per_warp=2),
    LaunchConfig(cluster=1, rows=64, warps=8, head_groups=4, ff_slices=4, states_per_warp=2),
    LaunchConfig(cluster=1, rows=80, warps=8, head_groups=4, ff_slices=4, states_per_warp=2),
)  # fmt: skip


def _splits_bf16(config: DecodeConfig) -> bool:
    """Return True if the first feed-forward product and the head need more bits than bf16."""
    return any(config.dtype_of(name) != config.dtype for name in ("0.linear1", "head"))


def source() -> str:
    """Return the source code of the kernel."""
    return "".join((FOLDER / name).read_text("utf-8") for name in SOURCES)


def defines(config: DecodeConfig, launch: LaunchConfig) -> dict[str, int | float]:
    """Return the macros with which the source is compiled."""
    return {
        "D": config.d_model, "FF": config.d_ff, "HEADS": config.heads, "LAYERS": config.layers,
        "OUTPUTS": config.outputs, "PRE": config.pre_norm, "GELU": config.gelu,
        "PIXELS": config.pixels, "STEPS_PER_PIXEL": config.steps_per_pixel,
        "FIRST_STEP": config.first_step, "CHANNELS": config.channels, "CONTEXT": config.context,
        "EMBEDDING_SIZE": config.embedding_size, "CLASSES": config.classes,
        "IMAGE_WIDTH": config.width, "RING": config.ring,
        "WRITE_INTERVAL": config.write_interval, "DRAWS": config.draws,
        "CATEGORICAL": config.categorical, "FIRST_VALUE": config.first_value,
        "ATTENTION_EPS": ATTENTION_EPS, "MIN_LOG_PROB": MIN_LOG_PROB,
        "MIN_LOG_SCALE": MIN_LOG_SCALE, "MIN_WARM_LOG_SCALE": MIN_WARM_LOG_SCALE,
        "CLUSTER": launch.cluster, "ROWS": launch.rows,
        "WARPS": launch.warps, "HEAD_GROUPS": launch.head_groups, "FF_SLICES": launch.ff_slices,
        "STATES_PER_WARP": launch.states_per_warp, "STAGE_WEIGHTS": launch.stage_weights,
        "SPLIT_BF16": _splits_bf16(config),
    }  # fmt: skip


def shared_bytes(config: DecodeConfig, launch: LaunchConfig) -> int:
    """Return the bytes of shared memory per block, with the layout of ``layout.h``."""
    D, FF, split = config.d_model, config.d_ff, _splits_bf16(config)
    outputs = -(-config.outputs // 16) * 16
    heads = max(config.heads // (launch.cluster * launch.head_groups), 1)
    scratch = max(96 * heads + 8, FF // launch.ff_slices + 8, 2 * outputs)
    streams = 2 if launch.cluster > 1 else 1
    inputs = (3 if split else 2) * (D + 8)
    per_row = 4 * (D + 4) * streams + 2 * (inputs + scratch) + 16
    if launch.cluster == 1:
        biases = 5 * D + FF
        return -(-(launch.rows * per_row + 4 * biases) // 16) * 16
    per_row += 4 * (7 + config.draws + config.channels)  # a RowSample
    barriers = 8 * (5 + (4 * launch.warps if launch.stage_weights else 0))
    vectors = 9 * D + FF + (2 * TAPS * D if config.short_conv else 0)
    partial_sums = 2 * launch.warps * launch.rows * 20
    own = launch.rows * per_row + barriers + 4 * (partial_sums + 2 * vectors + 2 * D + outputs)
    own = -(-own // 16) * 16
    if not launch.stage_weights:
        return own
    qkv = 3 * D // launch.cluster if launch.cluster <= config.heads else 80
    feed_forward = D * FF * (4 if split else 2)
    return own + 2 * (qkv * D + (D**2 + feed_forward) // launch.cluster)


def fits(launch: LaunchConfig, config: DecodeConfig, capability: tuple[int, int]) -> bool:
    """Return True if a configuration fits a network and a capability, given enough memory."""
    return (launch.cluster == 1 or capability >= (9, 0)) and launch.fits(config)


def supported_configs(
    config: DecodeConfig,
    launch_configs: Sequence[LaunchConfig],
    *,
    capability: tuple[int, int],
    shared: int,
) -> list[LaunchConfig]:
    """Return the configurations that fit a network, a device and ``shared`` bytes per block.

    If several have the same number of blocks and rows, only the first is returned.
    """
    found: dict[tuple[int, int], LaunchConfig] = {}
    for launch in launch_configs:
        if fits(launch, config, capability) and shared_bytes(config, launch) <= shared:
            found.setdefault((launch.cluster, launch.rows), launch)
    return list(found.values())


def variants(capability: tuple[int, int], shared: int) -> list[CudaSource]:
    """List the kernel of each network in each configuration that a device supports."""
    text = source()
    return [
        CudaSource(
            f"fused_decode/{name}/{launch.cluster} x {launch.rows}", text,
            defines(config, launch), shared_bytes(config, launch), STACK,
        )
        for name, config in COMPILED.items() if unsupported_reason(config) is None
        for launch in supported_configs(
            config, LAUNCH_CONFIGS, capability=capability, shared=shared
        )
    ]  # fmt: skip


def unsupported_reason(config: DecodeConfig) -> str | None:
    """Return why the fused kernel does not support a network, or None if it does."""
    if config.dtype != torch.bfloat16:
        return "it computes in bf16 only"
    if config.head_size != HEAD_SIZE:
        return f"the head size must be {HEAD_SIZE}, not {config.head_size}"
    if config.d_model % CHUNK or config.d_ff % CHUNK:
        return f"d_model {config.d_model} and d_ff {config.d_ff} must be multiples of {CHUNK}"
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


def pack(config: DecodeConfig, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the matrices in bf16 and the vectors in float32, in the order of reading."""
    matrices, vectors = [], []
    for i in range(config.layers):
        matrices += [
            _by_head(weights[f"{i}.qkv.weight"], config.heads),
            *(weights[f"{i}.{name}.weight"] for name in ("out", "linear1", "linear2")),
        ]
        vectors += [
            _by_head(weights[f"{i}.qkv.bias"], config.heads),
            *(weights[f"{i}.{name}.bias"] for name in ("out", "linear1", "linear2")),
            *(weights[f"{i}.{norm}.{kind}"] for norm in ("norm1", "norm2")
              for kind in ("weight", "bias")),
            *(weights[f"{i}.conv{half}.weight"].flatten() for half in (1, 2) if config.short_conv),
        ]  # fmt: skip
    matrices.append(_pad_rows(weights["head.weight"]))
    if _splits_bf16(config):
        split = matrices[-1], weights["0.linear1.weight"]
        matrices += [matrix - matrix.bfloat16().float() for matrix in split]  # the low parts
    vectors += [weights["norm.weight"], weights["norm.bias"], _pad_rows(weights["head.bias"])]
    return torch.cat([mma_fragments(x.bfloat16()).flatten() for x in matrices]), torch.cat(vectors)


_POINTERS = (
    "packed", "vectors", "slots", "positions", "canvas", "label", "context_index", "value_table",
    "step_table", "label_table", "kv", "z", "pending", "ring", "seed",
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
    config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return all tensors that the kernel reads and writes, by the names of its arguments."""
    packed, vectors = pack(config, weights)
    return dict(buffers) | {
        "packed": packed, "vectors": vectors,
        **{name: weights[name] for name in (
            "context_index", "value_table", "step_table", "label_table",
        )},
    }  # fmt: skip


class FusedDecode:
    """The fused decode kernel of a network, in every launch configuration that the device can run.

    Raises:
        DriverError: The kernel cannot be compiled and run on the device in any configuration.
    """

    def __init__(
        self, config: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *,
        capability: tuple[int, int], shared: int,
        launch_configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
    ) -> None:  # fmt: skip
        self._memory = kernel_memory(config, weights, buffers)
        text = source()

        def compiled(launch: LaunchConfig) -> bytes:
            return compile_cached(text, "decode.cu", defines(config, launch), capability)

        if not any(fits(one, config, capability) for one in launch_configs):
            raise DriverError("no launch configuration fits a network of this size on this GPU")
        launch_configs = supported_configs(
            config, launch_configs, capability=capability, shared=shared
        )
        if not launch_configs:
            raise DriverError(
                f"the kernel needs more than the GPU's {shared:,} bytes of shared memory per block"
            )
        with ThreadPoolExecutor() as threads:
            binaries = [threads.submit(compiled, launch) for launch in launch_configs]
        self._kernels: list[tuple[LaunchConfig, Kernel, int]] = []
        errors = dict[LaunchConfig, str]()
        for launch, binary in zip(launch_configs, binaries, strict=True):
            try:
                kernel = load_kernel(
                    binary.result(), "fused_decode", torch.cuda.current_device(),
                    threads=32 * launch.warps, shared=shared_bytes(config, launch),
                    cluster=launch.cluster,
                )  # fmt: skip
                max_clusters = kernel.max_active_clusters()
            # A MIG slice may be too small for a large cluster, or NVRTC may refuse an instruction.
            except (CompileError, DriverError) as error:
                errors[launch] = str(error)
                continue
            if max_clusters:
                self._kernels.append((launch, kernel, max_clusters))
        if not self._kernels:
            message = next(iter(errors.values()), "the GPU cannot run any of its blocks")
            raise DriverError(f"no launch configuration works on this GPU: {message}")
        for launch, message in errors.items():
            log.warning("the fused kernel does not use %s: %s", launch, message)

    def run(self, rows: int, pixels: int) -> None:
        """Draw ``pixels`` pixels of the first ``rows`` rows; guided images start at even rows."""
        fitting = [x for x in self._kernels if rows <= x[2] * x[0].rows]
        launch, kernel, max_clusters = fitting[0] if fitting else self._kernels[-1]
        clusters, rows_per_cluster = launch.partition(rows, max_clusters)
        # With many rows, one launch per pixel lets blocks read the weights at the same time: 4 %
        # faster on an H200 than one launch, in which blocks drift apart.
        launches, pixels = (pixels, 1) if launch.cluster == 1 else (1, pixels)
        launch_arguments = arguments(self._memory, rows, rows_per_cluster, pixels)
        for _ in range(launches):
            kernel.launch(clusters, launch_arguments)
