"""How fast a CUDA device draws and trains, beside what its memory can do: ``scanline bench``.

``python -m scanline.model.bench.cuda [MODEL …]`` does the same where the command line's own
packages are not installed.

As on the CPU, nothing is timed before it has been checked against the reference, and figures are
medians. ``GB/s`` counts what a step has to move: the weights once, and the state of every image.
The limit beside each figure is the time that a copy of as many bytes takes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from scanline.model.bench import cpu as bench
from scanline.model.bench.cuda_training import Training, median_seconds, time_training
from scanline.model.bench.kernel_profile import format_kernel_times, profile_decoder
from scanline.model.bench.models import find_models
from scanline.model.bench.roofline import Bound, bytes_per_step
from scanline.model.checkpoint import Checkpoint, SamplingDefaults
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder

SLOTS = (1, 128, 1_024, 10_000)
TRAINING_IMAGES = {"mnist-paper": 64, "cifar10-paper": 16, "mnist": 64, "cifar10": 64}
COPY_BYTES = 1 << 30


@dataclass(frozen=True)
class CudaReport(bench.Report):
    """All timings of a run on a device; ``peaks`` is what a copy in its memory moves."""

    training: list[Training]


def find_device() -> torch.device:
    """Give the CUDA device to time; raises ``BackendError`` where there is none."""
    if not torch.cuda.is_available():
        raise BackendError(
            "there is no CUDA device to time here: install a CUDA build of PyTorch on a machine "
            "with an NVIDIA GPU, or leave --device cuda out"
        )
    return torch.device("cuda", torch.cuda.current_device())


def describe(device: torch.device) -> dict[str, Any]:
    """Name the hardware and what drives it."""
    hardware: dict[str, Any] = {
        "device": str(device), "system": platform.platform(), "torch": torch.__version__,
    }  # fmt: skip
    if device.type == "cuda":
        import triton

        found = torch.cuda.get_device_properties(device)
        hardware |= {
            "device": found.name, "memory_gb": round(found.total_memory / 1e9, 1),
            "multiprocessors": found.multi_processor_count,
            "capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda,
            "triton": triton.__version__,
        }  # fmt: skip
    return hardware


def copy_rate(device: torch.device, size: int) -> float:
    """Measure bytes a second, read and written, of a copy within the device's memory."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device, 20)


def step_bytes(config: ModelConfig, slots: int) -> float:
    """Bytes that one step of all slots has to move: bf16 weights once, and each slot's state."""
    from scanline.kernels.cuda.decode_config import state_bytes
    from scanline.model.decoders.packing import decode_config_for

    return bytes_per_step(config, 0, "bf16") + slots * state_bytes(decode_config_for(config))


def drawn_in(
    how: str, *, checkpoint: Checkpoint, slots: int, factory: bench.DecoderFactory, seconds: float,
    repeats: int, style: SamplingDefaults | None = None,
) -> str:  # fmt: skip
    """Say what a step takes of a decoder that is opened in a way of its own, and of what."""
    said = f"{checkpoint.name}, {how}"
    try:
        decoder = factory(checkpoint.model, slots)
        timed = bench.time_decoder(checkpoint.name, decoder, seconds, repeats, style)
        spent = format_kernel_times(profile_decoder(decoder, style))
    except (BackendError, torch.OutOfMemoryError) as error:
        torch.cuda.empty_cache()
        return f"{said}: {error}"
    return f"{said}: {timed.milliseconds_a_step:.3f} ms a step of {slots} slots; {spent}"


def run_bench(
    checkpoints: Sequence[Checkpoint],
    *,
    slots: Sequence[int] = SLOTS,
    seconds: float = 1.0,
    repeats: int = 5,
    plain: bool = False,
    progress: Callable[[str], object] = lambda line: None,
) -> CudaReport:
    """Time networks on the CUDA device; if ``plain``, kernels that the host starts one by one.

    ``progress`` is told each line of the tables as it is measured. Raises ``BackendError`` without
    a device, ``RuntimeError`` where something does not agree with the reference.
    """
    device = find_device()
    from scanline.model.decoders.triton import TritonDecoder  # Triton need not be there

    in_turn = partial(TritonDecoder, overlap=False)
    hardware = describe(device)
    rate = copy_rate(device, COPY_BYTES)
    progress(", ".join(f"{name} {value}" for name, value in hardware.items()))
    progress(f"a copy in memory moves {rate / 1e9:.0f} GB/s")
    progress(bench.HEADER)
    timings: list[bench.Timing] = []
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        progress(line)

    factory: bench.DecoderFactory = partial(create_decoder, backend="triton")
    if plain:
        from scanline.model.bench.cuda_launch_modes import open_plain as factory

        note("kernels started one by one, without graphs or overlap: slower than served")
    for checkpoint in checkpoints:
        name, model = checkpoint.name, checkpoint.model
        try:
            bench.check_decoder(model, factory)
        except (BackendError, torch.OutOfMemoryError) as error:
            note(f"{name}: {error}")
            continue
        for count in slots:
            try:
                decoder = factory(model, count)
                timed = bench.time_decoder(name, decoder, seconds, repeats)
                spent = format_kernel_times(profile_decoder(decoder))
                del decoder  # before another's memory is taken
            except (BackendError, torch.OutOfMemoryError) as error:
                torch.cuda.empty_cache()
                note(f"{name}: {error}")
                continue
            moved = step_bytes(model.config, count)
            step = timed.milliseconds_a_step / 1e3
            timed = replace(timed, gbytes_a_second=moved / step / 1e9)
            timings.append(timed.with_bound(Bound("bytes", moved / rate)))
            progress(bench.format_row(timings[-1]))
            note(
                f"{name}, {count} slots: {moved / 1e6:.1f} MB a step; a copy of as many bytes "
                f"takes {moved / rate / step:.0%} of its time; {spent}"
            )
            drawn = partial(drawn_in, checkpoint=checkpoint, seconds=seconds, repeats=repeats)
            if count == 1 and not plain:
                note(drawn("kernels one after another", slots=1, factory=in_turn))
            if model.config.classes and count == max(slots):
                style = checkpoint.defaults  # of which an image may take a twin along
                how = f"{count} labelled at guidance {style.guidance:g}, top_p {style.top_p:g}"
                both = count if style.guidance == 1 else 2 * count
                note(drawn(how, slots=both, factory=factory, style=style))
    training: list[Training] = []
    for checkpoint in checkpoints:
        name = checkpoint.name
        if name not in TRAINING_IMAGES:
            continue
        images = TRAINING_IMAGES[name]
        try:
            training.append(time_training(name, checkpoint.model, images, device, repeats))
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            note(f"{name}: training on {images} images at once: {error}")
            continue
        timed_training = training[-1]
        note(
            f"{name}: training on {images} images at once, {timed_training.milliseconds:.1f} ms "
            f"forward and backward, {timed_training.pixels_a_second:,.0f} pixels/s, "
            f"{timed_training.gigabytes:.1f} GB; {timed_training.step_milliseconds:.1f} ms a step; "
            f"{format_kernel_times(timed_training.kernels)}"
        )
    return CudaReport(hardware, {"copy": round(rate / 1e9, 1)}, timings, notes, training)


def main() -> None:
    """Print the tables as they are measured, and all of it as one JSON line."""
    parser = argparse.ArgumentParser(prog="bench.cuda", description=__doc__)
    parser.add_argument("models", nargs="*", help="shipped models or presets; all if none")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one run")
    parser.add_argument("--repeats", type=int, default=5, help="runs, whose median counts")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS, help="images at once")
    parser.add_argument(
        "--plain", action="store_true", help="without graphs or overlap, where those do not work"
    )
    options = parser.parse_args()

    def progress(line: str) -> None:
        print(line, flush=True)  # noqa: T201

    try:
        report = run_bench(
            find_models(options.models), slots=options.slots, seconds=options.seconds,
            repeats=options.repeats, plain=options.plain, progress=progress,
        )  # fmt: skip
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))
    progress(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
