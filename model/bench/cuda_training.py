"""How fast a device trains: a batch's way forward and back, and a whole step.

As everywhere in the bench, nothing is timed before it has been checked against the reference.
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

LEARNED_ERROR = 0.02  # bits/dim, and part of a gradient's length, that bf16 may change


@dataclass(frozen=True)
class Training:
    """Forward and backward passes of a network in bf16, of so many images at once.

    ``step_milliseconds`` has the optimizers' too, and all else of a run's step; ``kernels`` are
    the microseconds of the passes that each kernel takes.
    """

    model: str
    images: int
    milliseconds: float
    pixels_a_second: float
    gigabytes: float
    step_milliseconds: float
    kernels: dict[str, float]


def median_seconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
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
        run = partial(_passed, ForwardBackward(model, bf16=True), model, canvas)
        seconds = median_seconds(run, device, repeats)
        kernels = profile_kernels(run)
        most = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        pixels = images * model.config.pixels / seconds
        step = time_step(model.config, images, device, repeats)
        return Training(name, images, seconds * 1e3, pixels, most / 1e9, step * 1e3, kernels)
    finally:
        model.zero_grad()
        model.cpu().eval()


def time_step(config: ModelConfig, images: int, device: torch.device, repeats: int) -> float:
    """Give the seconds of a training step, as ``scanline train`` takes it, without labels."""
    canvas = torch.randint(0, 256, (images, config.pixels, config.channels), dtype=torch.uint8)
    train_state = TrainState(config, TrainingConfig(steps=repeats + 2, batch=images), device)
    return median_seconds(lambda: train_state.take_step(canvas, None), device, repeats)


def check_training(name: str, model: LinearTransformer) -> None:
    """Raise ``RuntimeError`` unless bf16 gives the loss and the gradient of float32 on the CPU."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, model.config.pixels, model.config.channels)
    canvas = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    here = model.norm.weight.device
    losses, gradients = [], []
    for device, bf16 in ((torch.device("cpu"), False), (here, True)):
        model.to(device)
        losses.append(float(_passed(ForwardBackward(model, bf16=bf16), model, canvas.to(device))))
        gradients.append(torch.cat([p.grad.flatten().cpu() for p in model.parameters()
                                    if p.grad is not None]))  # fmt: skip
    length = float(gradients[0].norm())
    errors = abs(losses[1] - losses[0]), float((gradients[1] - gradients[0]).norm()) / length
    if not max(errors) <= LEARNED_ERROR:
        raise RuntimeError(
            f"{name} in bf16: {errors[0]:.4f} bits/dim and {errors[1]:.4f} of the gradient from "
            "the reference: not timed"
        )


def _passed(
    passes: ForwardBackward, model: LinearTransformer, canvas: torch.Tensor
) -> torch.Tensor:
    model.zero_grad()
    return passes(canvas, None)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
