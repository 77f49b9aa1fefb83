"""What the command line does with models: find one, draw with it, and choose what to train."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from scanline.model.checkpoint import (
    Checkpoint,
    write_atomically,
)
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.folder import load_images
from scanline.model.data.published import Dataset, load_dataset, split_validation
from scanline.model.decoders.opening import open_decoder
from scanline.model.network import LinearTransformer
from scanline.service.engine import Engine
from scanline.service.generation import Request
from scanline.service.pictures import to_grid
from scanline.service.queue import Limits

SLOTS = 64


def draw_grid(
    checkpoint: Checkpoint, request: Request, out: Path, scale: int, backend: str,
    threads: int | None = None, quiet: bool = False,
) -> None:  # fmt: skip
    """Draw a request with an engine of its own, and write it as a PNG grid."""
    config = checkpoint.model.config
    decoder = open_decoder(checkpoint.model, min(request.n, SLOTS), backend, threads)
    engine = Engine(checkpoint.name, decoder, Limits(max_waiting=request.n))
    engine.start()
    try:
        generation = engine.queue.submit(request)
        total = request.n * (config.pixels - request.prefix)
        with (
            engine.queue.reading(generation),
            tqdm(total=total, unit="pixel", disable=quiet) as bar,
        ):
            while not generation.finished:
                time.sleep(0.05)
                bar.update(generation.drawn - bar.n)
            bar.update(generation.drawn - bar.n)
    finally:
        engine.close(drain=0)
    if generation.error:
        raise RuntimeError(generation.error)
    grid = to_grid([image.read(0, config.pixels) for image in generation.images], config, scale)
    write_atomically(out, grid)


def write_samples(model: LinearTransformer, folder: Path) -> None:
    """Draw 16 images with a network in training, always from the same seeds: ``samples.png``."""
    checkpoint = Checkpoint("training", model)
    draw_grid(checkpoint, Request(n=16, seed=0), folder / "samples.png", 4, "auto", quiet=True)


def training_data(
    dataset: str | None,
    images: Path | None,
    size: int,
    grey: bool,
    hold_out: int,
    data_dir: Path | None,
    download: bool,
) -> tuple[Dataset, Dataset | None]:
    """Read what to train on, and ``hold_out`` images of it to validate on.

    The test set stays out of it. Of a folder, at most a tenth is held out. Raises ``ValueError`` on
    an unclear wish.
    """
    if (dataset is None) == (images is None):
        raise ValueError("say what to train on: mnist, cifar10, or --images FOLDER")
    if images is not None:
        data = load_images(images, size, grey)
        hold_out = min(hold_out, len(data) // 10)
    else:
        if dataset not in PRESETS:
            raise ValueError(f"there is no {dataset!r}; there are {', '.join(PRESETS)}")
        name = str(dataset).removesuffix("-paper")
        data = load_dataset(name, "train", data_dir, download=download)
    return split_validation(data, hold_out, seed=0) if hold_out else (data, None)


def training_config(dataset: str | None, data: Dataset, changes: dict[str, Any]) -> ModelConfig:
    """Choose the network: a preset, or the one nearest to the images of a folder."""
    if dataset is not None:
        return replace(PRESETS[dataset], **changes)
    height, width, channels = data.images.shape[1:]
    nearest = PRESETS["mnist" if channels == 1 else "cifar10"]
    shape = {"height": height, "width": width, "classes": data.classes}
    return replace(nearest, **shape | changes)
