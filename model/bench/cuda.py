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
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scanline.model.bench import cpu as bench
from scanline.model.bench.kernels import described, kernel_times
from scanline.model.bench.limits import Limit, least_bytes
from scanline.model.bench.models import find_models
from scanline.model.checkpoint import Checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import BackendError
from scanline.model.decoders.opening import open_decoder
from scanline.model.network import LinearTransformer
from scanline.model.training.passes import Passes
from scanline.model.training.recipe import TrainingConfig
from scanline.model.training.trainer import Trainer

SLOTS = (1, 128, 1_024, 10_000)
TRAINING_IMAGES = {"mnist-paper": 64, "cifar10-paper": 16, "mnist": 64, "cifar10": 64}
COPY_BYTES = 1 << 30
LEARNED_ERROR = 0.02  # bits/dim, and part of a gradient's length, that bf16 may change


@dataclass(frozen=True)
class Training:
    """Forward and backward passes of a network in bf16, of so many images at once.

    ``step_milliseconds`` has the optimizers' too, and all else of a run's step.
    """

    model: str
    images: int
    milliseconds: float
    pixels_a_second: float
    gigabytes: float
    step_milliseconds: float


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


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Give the median time of a run, which is made twice beforehand to warm up."""
    times = []
    for repeat in range(-2, repeats):
        _wait(device)
        began = time.perf_counter()
        run()
        _wait(device)
        if repeat >= 0:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def copy_rate(device: torch.device, size: int, repeats: int = 20) -> float:
    """Measure bytes a second, read and written, of a copy within the device's memory."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, repeats)


def step_bytes(config: ModelConfig, slots: int) -> float:
    """Bytes that one step of all slots has to move: bf16 weights once, and each slot's state."""
    from scanline.kernels.cuda.sizes import state_bytes
    from scanline.model.decoders.packing import sizes_of

    return least_bytes(config, 0, "bf16") + slots * state_bytes(sizes_of(config))


def time_one_after_another(
    name: str, model: LinearTransformer, seconds: float, repeats: int
) -> float:
    """Give a step's milliseconds where no kernel is set up before the one before has ended."""
    from scanline.model.decoders.triton import TritonDecoder

    decoder = TritonDecoder(model, 1, overlap=False)
    return bench.time_decoder(name, decoder, seconds, repeats).milliseconds_a_step


def as_drawn(
    checkpoint: Checkpoint, images: int, opening: bench.Opening, seconds: float, repeats: int
) -> str:
    """Say what a step takes of labelled images drawn at the model's defaults, twins beside them."""
    style, name = checkpoint.defaults, checkpoint.name
    slots = images if style.guidance == 1 else 2 * images
    how = f"{name}, {images} labelled at guidance {style.guidance:g}, top_p {style.top_p:g}"
    try:
        decoder = opening(checkpoint.model, slots)
        timed = bench.time_decoder(name, decoder, seconds, repeats, style)
    except (BackendError, torch.OutOfMemoryError) as error:
        torch.cuda.empty_cache()
        return f"{how}: {error}"
    return f"{how}: {timed.milliseconds_a_step:.3f} ms a step of {slots} slots"


def time_training(
    name: str, model: LinearTransformer, images: int, device: torch.device, repeats: int
) -> Training:
    """Time forward and backward together, once loss and gradients are those of float32."""
    model = model.to(device).train()
    try:
        check_training(name, model)
        shape = (images, model.config.pixels, model.config.channels)
        canvas = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds = seconds_of(
            partial(_passed, Passes(model, bf16=True), model, canvas), device, repeats
        )
        most = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        pixels = images * model.config.pixels / seconds
        step = time_step(model.config, images, device, repeats)
        return Training(name, images, seconds * 1e3, pixels, most / 1e9, step * 1e3)
    finally:
        model.zero_grad()
        model.cpu().eval()


def time_step(config: ModelConfig, images: int, device: torch.device, repeats: int) -> float:
    """Give the seconds of a training step, as ``scanline train`` takes it, without labels."""
    canvas = torch.randint(0, 256, (images, config.pixels, config.channels), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as folder:
        recipe = TrainingConfig(steps=repeats + 2, batch=images)
        trainer = Trainer(config, recipe, Path(folder), device)
        return seconds_of(lambda: trainer.take_step(canvas, None), device, repeats)


def check_training(name: str, model: LinearTransformer) -> None:
    """Raise ``RuntimeError`` unless bf16 gives the loss and the gradient of float32 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, model.config.pixels, model.config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    here = model.norm.weight.device
    losses, gradients = [], []
    for device, bf16 in ((torch.device("cpu"), False), (here, True)):
        model.to(device)
        losses.append(float(_passed(Passes(model, bf16=bf16), model, canvas.to(device))))
        gradients.append(torch.cat([p.grad.flatten().cpu() for p in model.parameters()
                                    if p.grad is not None]))  # fmt: skip
    length = float(gradients[0].norm())
    errors = abs(losses[1] - losses[0]), float((gradients[1] - gradients[0]).norm()) / length
    if not max(errors) <= LEARNED_ERROR:
        raise RuntimeError(
            f"{name} in bf16: {errors[0]:.4f} bits/dim and {errors[1]:.4f} of the gradient from "
            "the reference: not timed"
        )


def _passed(passes: Passes, model: LinearTransformer, canvas: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    return passes(canvas, None)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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

    opening: bench.Opening = partial(open_decoder, backend="triton")
    if plain:
        from scanline.model.bench.starting import open_plain as opening

        note("kernels started one by one, without graphs or overlap: slower than served")
    for checkpoint in checkpoints:
        name, model = checkpoint.name, checkpoint.model
        bench.check(model, opening)
        for count in slots:
            try:
                decoder = opening(model, count)
                timed = bench.time_decoder(name, decoder, seconds, repeats)
                spent = described(kernel_times(decoder))
                del decoder  # before another's memory is taken
            except (BackendError, torch.OutOfMemoryError) as error:
                torch.cuda.empty_cache()
                note(f"{name}: {error}")
                continue
            moved = step_bytes(model.config, count)
            step = timed.milliseconds_a_step / 1e3
            timed = replace(timed, gbytes_a_second=moved / step / 1e9)
            timings.append(timed.beside(Limit("bytes", moved / rate)))
            progress(bench.row(timings[-1]))
            if model.config.classes and count == max(slots):
                note(as_drawn(checkpoint, count, opening, seconds, repeats))
            if count == 1 and not plain:
                after = time_one_after_another(name, model, seconds, repeats)
                note(f"{name}, 1 slot, kernels one after another: {after:.3f} ms a step")
            note(
                f"{name}, {count} slots: {moved / 1e6:.1f} MB a step; a copy of as many bytes "
                f"takes {moved / rate / step:.0%} of its time; {spent}"
            )
    training: list[Training] = []
    for checkpoint in checkpoints:
        name = checkpoint.name
        if name not in TRAINING_IMAGES:
            continue
        images = TRAINING_IMAGES[name]
        training.append(time_training(name, checkpoint.model, images, device, repeats))
        timed_training = training[-1]
        note(
            f"{name}: training on {images} images at once, {timed_training.milliseconds:.1f} ms "
            f"forward and backward, {timed_training.pixels_a_second:,.0f} pixels/s, "
            f"{timed_training.gigabytes:.1f} GB; {timed_training.step_milliseconds:.1f} ms a step"
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
