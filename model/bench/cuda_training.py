"""Benchmark of training on a device: forward and backward passes, and whole steps.

Results are checked against the reference before they are timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from scanline.model.bench.kernel_profile import profile_kernels
from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.forward_backward import ForwardBackward
from scanline.model.training.train_state import TrainState

MAX_BF16_ERROR = 0.02  # of the loss in bits/dim, and of the gradient relative to its norm


@dataclass(frozen=True)
class CudaTrainingTiming:
    """Timing of a network's training in bf16.

    Attributes:
        model: Name of the network.
        images: Batch size.
        milliseconds: Time of a forward and backward pass.
        pixels_per_second: Pixels per second of these passes.
        gigabytes: Peak memory.
        step_milliseconds: Time of a whole training step, with the optimizers.
        kernels: Microseconds per kernel of the passes.
    """

    model: str
    images: int
    milliseconds: float
    pixels_per_second: float
    gigabytes: float
    step_milliseconds: float
    kernels: dict[str, float]


def median_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median time of ``run``, after two warm-up runs."""
    times = []
    for repeat in range(-2, repeats):
        _synchronize(device)
        start = time.perf_counter()
        run()
        _synchronize(device)
        if repeat >= 0:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def time_training(
    name: str, model: LinearTransformer, images: int, device: torch.device, repeats: int
) -> CudaTrainingTiming:
    """Time the training of a network, after comparing its loss and gradients with float32."""
    model = model.to(device).train()
    try:
        check_training(name, model)
        shape = (images, model.config.pixels, model.config.channels)
        canvas = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        run = partial(_forward_backward, ForwardBackward(model, bf16=True), model, canvas)
        seconds = median_seconds(run, device, repeats)
        kernels = profile_kernels(run)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        pixels = images * model.config.pixels / seconds
        step = time_step(model.config, images, device, repeats)
        return CudaTrainingTiming(
            name, images, seconds * 1e3, pixels, peak / 1e9, step * 1e3, kernels
        )
    finally:
        model.zero_grad()
        model.cpu().eval()


def time_step(config: ModelConfig, images: int, device: torch.device, repeats: int) -> float:
    """Return the seconds of a training step of ``scanline train``, without labels."""
    canvas = torch.randint(0, 256, (images, config.pixels, config.channels), dtype=torch.uint8)
    train_state = TrainState(config, TrainingConfig(steps=repeats + 2, batch=images), device)
    return median_seconds(lambda: train_state.take_step(canvas, None), device, repeats)


def check_training(name: str, model: LinearTransformer) -> None:
    """Compare loss and gradients in bf16 with those in float32 on the CPU.

    Raises:
        RuntimeError: If they differ by more than ``MAX_BF16_ERROR``.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (1, model.config.pixels, model.config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    own_device = model.norm.weight.device
    losses, gradients = [], []
    for device, bf16 in ((torch.device("cpu"), False), (own_device, True)):
        model.to(device)
        losses.append(
            float(_forward_backward(ForwardBackward(model, bf16=bf16), model, canvas.to(device)))
        )
        gradients.append(torch.cat([p.grad.flatten().cpu() for p in model.parameters()
                                    if p.grad is not None]))  # fmt: skip
    length = float(gradients[0].norm())
    errors = abs(losses[1] - losses[0]), float((gradients[1] - gradients[0]).norm()) / length
    if not max(errors) <= MAX_BF16_ERROR:
        raise RuntimeError(
            f"{name}: in bf16 the loss differs from the reference by {errors[0]:.4f} bits/dim and "
            f"the gradient by {errors[1]:.2%}; not timed"
        )


def _forward_backward(
    passes: ForwardBackward, model: LinearTransformer, canvas: torch.Tensor
) -> torch.Tensor:
    model.zero_grad()
    return passes(canvas, None)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
