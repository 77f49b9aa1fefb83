"""Temporary engine with which the commands draw image files."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from scanline.model.atomic_files import write_atomically
from scanline.model.checkpoint import Checkpoint
from scanline.model.config import ModelConfig
from scanline.model.decoders.factory import create_decoder
from scanline.model.progress import show_progress
from scanline.service.cli.pictures import check_target
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.provenance import Provenance
from scanline.service.engine.queue_limits import QueueLimits
from scanline.service.images import grid_size
from scanline.service.recipes.png_encoding import encode_grid

log = logging.getLogger("scanline.drawing")

SLOTS = 64
MAX_GRID_PIXELS = 2**28  # of a PNG, which is encoded in memory; also bounds the number of images


def draw_grid(
    checkpoint: Checkpoint, spec: GenerationSpec, out: Path, scale: int,
    backend: str, threads: int | None, metadata: bool,
) -> None:  # fmt: skip
    """Draw images with a temporary engine, and write them as a PNG grid.

    Args:
        checkpoint: The model.
        spec: The images to draw.
        out: The PNG file to write.
        scale: The side of each image pixel in the grid.
        backend: The decoder's backend.
        threads: CPU threads; None for all cores.
        metadata: Write the recipe into the file.

    Raises:
        ValueError: If the file cannot be written or would be too large; checked before drawing.
        RuntimeError: If drawing fails.
    """
    check_target(out)
    _check_grid_size(spec.n, scale, checkpoint.model.config)
    generation, provenance = draw_generation(checkpoint, spec, backend, threads)
    generation.provenance = provenance if metadata else None
    write_atomically(out, encode_grid(generation, scale))


def _check_grid_size(n: int, scale: int, config: ModelConfig) -> None:
    """Raise ``ValueError`` if a grid of ``n`` images is too large for one file."""
    height, width = (side * scale for side in grid_size(n, config))
    if height * width > MAX_GRID_PIXELS:
        raise ValueError(
            f"the grid would have {width:,} × {height:,} pixels, and a file can have "
            f"{MAX_GRID_PIXELS:,}: lower -n or --scale, or draw several files with other seeds"
        )


def draw_generation(
    checkpoint: Checkpoint, spec: GenerationSpec, backend: str, threads: int | None
) -> tuple[Generation, Provenance]:
    """Draw images with a temporary engine, and show the progress.

    Returns:
        The complete generation, and the provenance of its images for the recipe.

    Raises:
        RuntimeError: If drawing fails.
    """
    config = checkpoint.model.config
    slots = min(spec.n * spec.slots_per_image, max(SLOTS, spec.slots_per_image))
    precision = checkpoint.native_precision
    decoder = create_decoder(checkpoint.model, slots, backend, threads, precision)
    engine = Engine(checkpoint.name, decoder, QueueLimits(max_waiting=spec.n))
    engine.start()
    try:
        generation = engine.queue.submit(spec)
        total = spec.n * (config.pixels - spec.prefix)
        with (
            engine.queue.reading(generation),
            show_progress(total, "pixel") as bar,
        ):
            while not generation.finished:
                time.sleep(0.05)
                bar.update(generation.drawn_pixels - bar.n)
            bar.update(generation.drawn_pixels - bar.n)
    finally:
        engine.close(drain=0)
    if generation.error:
        raise RuntimeError(generation.error)
    for warning in generation.warnings:
        log.warning("%s", warning)
    return generation, Provenance.of(checkpoint, decoder.arithmetic)
