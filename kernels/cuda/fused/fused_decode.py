"""All that draws in one kernel (``decode.cu``): how rows are shared out, and what it is given."""

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
PARTS = (
    "intrinsics.h", "layout.h", "noise.h", "distribution.h", "head_sampling.h", "residual_stream.h",
    "row_sampling.h",
    "matmul.h", "attention.h", "weights.h", "decode.cu",
)  # fmt: skip
HEAD_SIZE, CHUNK = 32, 128  # what the kernel takes: features of a head, and parts of its sums
STACK = 256  # bytes of a thread in device memory: addresses between products, and no state


@dataclass(frozen=True)
class LaunchConfig:
    """How rows are shared out: ``rows`` to each cluster of so many blocks of so many warps.

    ``groups`` and ``slices`` are in how many parts a block takes its heads and hidden features, one
    after another, so that there is room for them in shared memory; ``together`` is how many states
    a warp has at a time; ``staged`` has the next layer's weights come to shared memory meanwhile.
    """

    cluster: int
    rows: int
    warps: int
    groups: int = 1
    slices: int = 1
    together: int = 1
    staged: bool = False

    def fits(self, s: DecodeConfig) -> bool:
        """Say whether a network can be shared out so."""
        halved = self.cluster == 2 * s.heads and self.rows == 8  # two blocks have a head's values
        return (
            (halved or s.heads % (self.cluster * self.groups) == 0)
            and s.d_model % (16 * self.cluster) == 0
            and s.d_ff % (16 * self.cluster) == 0
            and s.d_ff % (self.slices * CHUNK) == 0
            and (self.cluster == 1 or self._out_parts(s) <= self.warps)
            and (not self.staged or self._most_parts(s) <= self.warps)
        )

    def _out_parts(self, s: DecodeConfig) -> int:
        """Give how many parts of attention's output product a block has: a warp has one at most."""
        return s.d_model // 16 // self.cluster * (s.d_model // CHUNK)

    def _most_parts(self, s: DecodeConfig) -> int:
        """Give how many parts of a product a block has: of 16 outputs and ``CHUNK`` inputs each."""
        heads = 6 * s.heads // self.cluster if self.cluster <= s.heads else 5
        of_model, of_hidden = s.d_model // CHUNK, s.d_ff // CHUNK
        return max(
            heads * of_model,
            s.d_ff // 16 // self.cluster * of_model * (3 if _exact(s) else 1),
            s.d_model // 16 // self.cluster * of_hidden,
        )

    def shares(self, rows: int, at_once: int) -> tuple[int, int]:
        """Give how many clusters have how many rows each, where so many clusters run at once.

        An even number, so that a guided image and its twin, at an even place, are never parted.
        """
        each = min(-(-rows // at_once), self.rows)
        each += each % 2
        return -(-rows // each), each


# From few rows to many: the first that has room for a batch is taken. Of those of one block each an
# H200 drew 10,000 images a sixth faster with one block a multiprocessor than with two, whose
# registers are half as many.
LAUNCH_CONFIGS = (
    LaunchConfig(cluster=16, rows=8, warps=12, staged=True),
    LaunchConfig(cluster=8, rows=8, warps=12, staged=True),
    LaunchConfig(cluster=8, rows=8, warps=16), LaunchConfig(cluster=8, rows=16, warps=16),
    LaunchConfig(cluster=4, rows=16, warps=16),
    LaunchConfig(cluster=2, rows=16, warps=16),
    LaunchConfig(cluster=1, rows=32, warps=8, groups=2, slices=4, together=2),
    LaunchConfig(cluster=1, rows=64, warps=8, groups=4, slices=4, together=2),
    LaunchConfig(cluster=1, rows=80, warps=8, groups=4, slices=4, together=2),
)  # fmt: skip


def _exact(s: DecodeConfig) -> bool:
    """Say whether the first feed-forward product and the head are of more bits than bf16's."""
    return any(s.dtype_of(name) != s.dtype for name in ("0.linear1", "head"))


def source() -> str:
    """Give the text that is compiled."""
    return "".join((FOLDER / name).read_text() for name in PARTS)


def defines(s: DecodeConfig, config: LaunchConfig) -> dict[str, int | float]:
    """Give what the source is compiled with."""
    return {
        "D": s.d_model, "FF": s.d_ff, "HEADS": s.heads, "LAYERS": s.layers, "OUTPUTS": s.outputs,
        "PRE": s.pre_norm, "GELU": s.gelu, "PIXELS": s.pixels, "PARTS": s.parts, "FIRST": s.first,
        "CHANNELS": s.channels, "PLACES": s.places, "CODE": s.code, "CLASSES": s.classes,
        "COLUMNS": s.columns, "RING": s.ring, "DELAY": s.delay, "DRAWS": s.draws,
        "CATEGORICAL": s.categorical, "FIRST_VALUE": s.first_value, "LEAST": MIN_LOG_PROB,
        "MIN_LOG_SCALE": MIN_LOG_SCALE, "MIN_WARM_LOG_SCALE": MIN_WARM_LOG_SCALE,
        "CLUSTER": config.cluster, "ROWS": config.rows, "WARPS": config.warps,
        "GROUPS": config.groups, "SLICES": config.slices,
        "TOGETHER": config.together, "STAGED": config.staged,
        "EXACT": _exact(s),
    }  # fmt: skip


def shared_bytes(s: DecodeConfig, config: LaunchConfig) -> int:
    """Give the shared memory of a block, as ``layout.h`` lays it out."""
    outputs = -(-s.outputs // 16) * 16
    heads = max(s.heads // (config.cluster * config.groups), 1)
    middle = max(96 * heads + 8, s.d_ff // config.slices + 8, 2 * outputs)
    streams = 2 if config.cluster > 1 else 1
    inputs = (3 if _exact(s) else 2) * (s.d_model + 8)
    each = 4 * (s.d_model + 4) * streams + 2 * (inputs + middle) + 16
    if config.cluster == 1:
        biases = 5 * s.d_model + s.d_ff
        return -(-(config.rows * each + 4 * biases) // 16) * 16
    each += 4 * (7 + s.draws + s.channels)  # a Row
    counts = 8 * (5 + (4 * config.warps if config.staged else 0))  # BARRIERS and PRODUCTS
    vectors = 9 * s.d_model + s.d_ff + (2 * TAPS * s.d_model if s.short_conv else 0)
    last = 2 * s.d_model + outputs
    own = (
        config.rows * each + counts + 4 * (2 * config.warps * config.rows * 20 + 2 * vectors + last)
    )
    own = -(-own // 16) * 16
    if not config.staged:
        return own
    qkv = 3 * s.d_model // config.cluster if config.cluster <= s.heads else 80
    forward = s.d_model * s.d_ff * (4 if _exact(s) else 2)
    staged = qkv * s.d_model + (s.d_model**2 + forward) // config.cluster
    return own + 2 * staged


def supported_configs(
    s: DecodeConfig,
    launch_configs: Sequence[LaunchConfig],
    *,
    capability: tuple[int, int],
    shared: int,
) -> list[LaunchConfig]:
    """Return the launch configurations that fit a network and ``shared`` bytes a block.

    Of those with as many blocks and rows the first.
    """
    found: dict[tuple[int, int], LaunchConfig] = {}
    for config in launch_configs:
        clusters = config.cluster == 1 or capability >= (9, 0)
        if clusters and config.fits(s) and shared_bytes(s, config) <= shared:
            found.setdefault((config.cluster, config.rows), config)
    return list(found.values())


def variants(capability: tuple[int, int], shared: int) -> list[CudaSource]:
    """List the kernel of each network, in each config, that a device compiles."""
    text = source()
    return [
        CudaSource(
            f"layers/{name}/{config.cluster} x {config.rows}", text, defines(s, config),
            shared_bytes(s, config), STACK,
        )
        for name, s in COMPILED.items() if unsupported_reason(s) is None
        for config in supported_configs(s, LAUNCH_CONFIGS, capability=capability, shared=shared)
    ]  # fmt: skip


def unsupported_reason(s: DecodeConfig) -> str | None:
    """Say why the layers of a network can't be one kernel, None where they can."""
    if s.dtype != torch.bfloat16:
        return "it computes in bf16"
    if s.head_size != HEAD_SIZE:
        return f"its heads are of {s.head_size} features, and the kernel's of {HEAD_SIZE}"
    if s.d_model % CHUNK or s.d_ff % CHUNK:
        return f"its rows of {s.d_model} or {s.d_ff} features are no multiple of {CHUNK}"
    return None


def mma_fragments(weight: Tensor) -> Tensor:
    """Order a matrix ``[16 m, 16 k]`` as ``mma.m16n8k16`` has its first operand in registers.

    Fragment after fragment of a row of tiles, of each 8 numbers a lane: ``[m, k, 32, 8]``.
    """
    m, k = weight.shape[0] // 16, weight.shape[1] // 16
    parts = weight.view(m, 2, 8, k, 2, 4, 2)  # tile, half, lane; tile, half, lane, number
    return parts.permute(0, 3, 2, 5, 4, 1, 6).reshape(m, k, 32, 8)


def _by_head(qkv: Tensor, heads: int) -> Tensor:
    """Order rows of q, k and v head by head."""
    return qkv.view(3, heads, HEAD_SIZE, *qkv.shape[1:]).transpose(0, 1).flatten(0, 2)


def _whole_tiles(head: Tensor) -> Tensor:
    """Add zero rows until tiles are whole."""
    return torch.cat([head, head.new_zeros(-len(head) % 16, *head.shape[1:])])


def pack(s: DecodeConfig, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Give the matrices, bf16, and the vectors, float32, in the order in which they are read."""
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
    matrices.append(_whole_tiles(weights["head.weight"]))
    if _exact(s):
        exact = matrices[-1], weights["0.linear1.weight"]
        matrices += [matrix - matrix.bfloat16().float() for matrix in exact]
    vectors += [weights["norm.weight"], weights["norm.bias"], _whole_tiles(weights["head.bias"])]
    return torch.cat([mma_fragments(x.bfloat16()).flatten() for x in matrices]), torch.cat(vectors)


_POINTERS = (
    "packed", "vectors", "slots", "positions", "canvas", "label", "sources", "table", "code",
    "label_table", "kv", "z", "waiting", "ring", "tables", "seed", "particle", "temperature",
    "top_p", "guidance", "twin", "known", "bits",
)  # fmt: skip


class Arguments(ctypes.Structure):
    """What ``decode.cu`` is given; pointers to memory of the device."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int) for name in ("rows", "each", "size", "pixels")),
    )


def arguments(memory: Mapping[str, Tensor], rows: int, each: int, pixels: int) -> Arguments:
    """Give the arguments of a launch for so many rows, ``each`` for a cluster."""
    pointers = [memory[name].data_ptr() for name in _POINTERS]
    return Arguments(*pointers, rows, each, len(memory["positions"]), pixels)


def memory_of(
    s: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Give all that the kernel reads and writes, by its arguments' names."""
    packed, vectors = pack(s, weights)
    return dict(buffers) | {
        "packed": packed, "vectors": vectors, "label_table": weights["label"],
        **{name: weights[name] for name in ("sources", "table", "code", "tables")},
    }  # fmt: skip


class FusedDecode:
    """All steps of so many pixels on a device, for so many rows as the best way has it.

    Raises ``CompileError`` or ``DriverError`` where the device cannot run them.
    """

    def __init__(
        self, s: DecodeConfig, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *,
        capability: tuple[int, int], shared: int,
        launch_configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
    ) -> None:  # fmt: skip
        self._memory = memory_of(s, weights, buffers)
        text = source()

        def compiled(config: LaunchConfig) -> bytes:
            return compile_cached(text, "decode.cu", defines(s, config), capability)

        launch_configs = supported_configs(s, launch_configs, capability=capability, shared=shared)
        if not launch_configs:
            raise DriverError(
                f"its rows do not fit into the {shared:,} bytes of shared memory of a block here"
            )
        with ThreadPoolExecutor() as threads:
            binaries = list(threads.map(compiled, launch_configs))
        self._kernels: list[tuple[LaunchConfig, Kernel, int]] = []
        said = "it runs none of their blocks"
        for config, binary in zip(launch_configs, binaries, strict=True):
            try:
                kernel = load_kernel(
                    binary, "layers", torch.cuda.current_device(), threads=32 * config.warps,
                    shared=shared_bytes(s, config), cluster=config.cluster,
                )  # fmt: skip
                at_once = kernel.max_active_clusters()
            except DriverError as error:  # a MIG slice may have no room for a large cluster
                said = str(error)
                log.warning("drawing without %s: %s", config, said)
                continue
            if at_once:
                self._kernels.append((config, kernel, at_once))
        if not self._kernels:
            raise DriverError(f"a block's rows cannot be shared out in any way here: {said}")

    def run(self, rows: int, pixels: int) -> None:
        """Draw so many pixels of the first rows; a guided image's row comes at an even place."""
        room = [each for each in self._kernels if rows <= each[2] * each[0].rows]
        config, kernel, most = room[0] if room else self._kernels[-1]
        clusters, each = config.shares(rows, most)
        # Blocks of many rows that begin a pixel together read weights together: an H200 had that
        # faster, by a twenty-fifth, than to let them drift apart.
        calls, together = (pixels, 1) if config.cluster == 1 else (1, pixels)
        given = arguments(self._memory, rows, each, together)
        for _ in range(calls):
            kernel.start(clusters, given)
