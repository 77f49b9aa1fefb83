"""Timings of the fused kernel on a device: all sizes, Triton's kernels, and variants of it.

``python -m tests.device.time_fused_kernel`` prints a line per timing. ``check_kernels.sh`` compares
the kernel with the reference; these timings do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.fused_decode import LAUNCH_CONFIGS, LaunchConfig
from scanline.model.bench.timing import time_decoder
from scanline.model.config import PRESETS
from scanline.model.network import LinearTransformer

MODELS = ("mnist-paper", "cifar10-paper", "cifar10", "mnist")
COMPARED = ("mnist-paper", "cifar10-paper")  # models that Triton's kernels are timed with too
SLOTS = (10_000, 1, 1_024, 64)  # the most important first, because time may run out
MANY_ROWS = LAUNCH_CONFIGS[-1:]  # used with 10,000 images
PREFETCH = "prefetch_state(layer, head, pair + 2 * ROUND)"
FIRST_PREFETCH = "pair < 2 * ROUND"
LOAD_WEIGHTS = (
    """ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));""",
    """ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p), "l"(0x14F0000000000000ull));""",
)  # the policy evict_last
PREFETCH_KV = "prefetch_l2(a.kv + lane * (K * K / 32) + (u64)index * (K * K));"
PREFETCH_KV_AT_ONCE = f"""
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {{
            asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;"
                :: "l"(a.kv + (u64)index * (K * K)), "n"(4 * K * K), "l"(0x12F0000000000000ull));
        }}
#else
        {PREFETCH_KV}
#endif
"""  # the policy evict_first


@dataclass(frozen=True)
class Variant:
    """A change of the kernel or of its launch configuration.

    Attributes:
        name: Name in the output.
        launch_configs: Launch configurations to choose from.
        changes: Replacements in the kernel's source, as pairs of old and new text.
        fused: False for Triton's kernels.
    """

    name: str
    launch_configs: tuple[LaunchConfig, ...] = LAUNCH_CONFIGS
    changes: tuple[tuple[str, str], ...] = ()
    fused: bool = True

    def source(self) -> str:
        """Return the kernel's source with the changes.

        Raises:
            ValueError: A text to replace is not in the source exactly once.
        """
        text = fused_decode.source()
        for old, new in self.changes:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: the source has {text.count(old)} times {old!r}")
            text = text.replace(old, new)
        return text


TRITON = Variant("Triton's kernels", fused=False)


def _one_block(name: str, rows: int, warps: int, states: int) -> Variant:
    return Variant(name, (LaunchConfig(1, rows, warps, 4, 4, states),))


def _prefetch(rounds: int) -> Variant:
    changes = (
        (FIRST_PREFETCH, f"pair < {rounds} * ROUND"),
        (PREFETCH, f"prefetch_state(layer, head, pair + {rounds} * ROUND)"),
    )
    return Variant(f"prefetch {rounds} rounds ahead", MANY_ROWS, changes)


# Variants for mnist-paper with 10,000 images.
VARIANTS = (
    _one_block("two blocks per multiprocessor, 2 states", 40, 4, 2),
    _one_block("two blocks per multiprocessor, 3 states", 40, 4, 3),
    _one_block("3 states per warp", 80, 8, 3),
    _one_block("12 warps", 80, 12, 1),
    _one_block("16 warps", 80, 16, 1),
    _prefetch(1),
    _prefetch(3),
    Variant("weights stay in L2", MANY_ROWS, (LOAD_WEIGHTS,)),
    Variant("prefetch states at once", MANY_ROWS, ((PREFETCH_KV, PREFETCH_KV_AT_ONCE),)),
    Variant("one tile per warp", MANY_ROWS, (("WARPS <= 8 ? 2 : 1", "false ? 2 : 1"),)),
)


@contextmanager
def compiled_source(text: str) -> Iterator[None]:
    """Let new decoders compile ``text`` instead of the kernel's own source."""
    own = fused_decode.source
    fused_decode.source = lambda: text
    try:
        yield
    finally:
        fused_decode.source = own


def time_variant(model: str, slots: int, variant: Variant, seconds: float, repeats: int) -> str:
    """Time a network with random weights and return a line with the result or the error."""
    from scanline.model.decoders.triton import TritonDecoder  # Triton is optional

    name = f"{model}, {slots} slots{f', {variant.name}' if variant.name else ''}"
    try:
        torch.manual_seed(0)
        network = LinearTransformer(PRESETS[model]).eval()
        with compiled_source(variant.source()):
            decoder = TritonDecoder(
                network, slots, fused=variant.fused, launch_configs=variant.launch_configs
            )
        timing = time_decoder(model, decoder, seconds, repeats)
    except Exception as error:  # time the other variants after any error
        return f"{name}: {type(error).__name__}: {str(error)[:200]}"
    finally:
        torch.cuda.empty_cache()
    return (
        f"{name}: {timing.milliseconds_per_step * 1e3:.1f} µs per step, "
        f"{timing.images_per_second:.0f} images/s, {timing.seconds_per_image * 1e3:.1f} ms"
    )


def timings(models: Sequence[str], slots: Sequence[int]) -> list[tuple[str, int, Variant]]:
    """List the timings in order: all sizes, Triton's kernels for comparison, then the variants."""
    plain = [(model, n, Variant("")) for n in slots for model in models]
    compared = [(model, n, TRITON) for n in slots for model in models if model in COMPARED]
    return plain + compared + [("mnist-paper", max(slots), variant) for variant in VARIANTS]


def main() -> None:
    """Time everything in order and print each result at once."""
    parser = argparse.ArgumentParser(prog="time_fused_kernel", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--slots", nargs="+", type=int, default=SLOTS, help="images at a time")
    parser.add_argument("--seconds", type=float, default=0.35, help="seconds per measurement")
    parser.add_argument("--repeats", type=int, default=2, help="measurements per figure (median)")
    options = parser.parse_args()
    for model, slots, variant in timings(options.models, options.slots):
        print(time_variant(model, slots, variant, options.seconds, options.repeats), flush=True)


if __name__ == "__main__":
    main()
