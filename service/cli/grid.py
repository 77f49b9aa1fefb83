"""Image files of the commands: grids of samples, and pictures of a training run's progress."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from scanline.model.api import draw
from scanline.model.atomic_files import write_atomically
from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.progress import show_progress
from scanline.model.training.learning_curve import draw_curve
from scanline.service.engine.engine import Engine
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.queue import QueueLimits
from scanline.service.images import to_grid

log = logging.getLogger("scanline.drawing")

SLOTS = 64


def draw_grid(
    checkpoint: Checkpoint, spec: GenerationSpec, out: Path, scale: int, backend: str,
    threads: int | None = None,
) -> None:  # fmt: skip
    """Draw images with a temporary engine, and write them as a PNG grid.

    Args:
        checkpoint: The model.
        spec: The images to draw.
        out: The PNG file to write.
        scale: The side of each image pixel in the grid.
        backend: The decoder's backend.
        threads: CPU threads; None for all cores.

    Raises:
        ValueError: If the file cannot be written; checked before drawing.
        RuntimeError: If drawing fails.
    """
    _check_target(out)
    config = checkpoint.model.config
    decoder = create_decoder(
        checkpoint.model, min(spec.n * spec.slots, max(SLOTS, spec.slots)), backend, threads,
        checkpoint.native_precision,
    )  # fmt: skip
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
    grid = to_grid([image.read(0, config.pixels) for image in generation.images], config, scale)
    write_atomically(out, grid)


def _check_target(out: Path) -> None:
    """Raise ``ValueError`` if ``out`` cannot be written; drawing may take minutes."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name a file in it, such as {out / 'samples.png'}")
    if out.exists() and not out.is_file():
        return  # a FIFO or a device
    if out.suffix.lower() != ".png" and (out.suffix or not out.exists()):
        raise ValueError(f"{out} must end in .png, because it will be a PNG file")
    try:
        folder = out.resolve().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # this user may write into the folder
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): name another file") from None


def save_progress(model: LinearTransformer, folder: Path) -> None:
    """Write ``curve.png``, and ``samples.png`` with the same seeds each time, into a run's folder.

    Networks that do not support decoding have no samples.
    """
    draw_curve(folder / "log.jsonl", folder / "curve.png")
    if not model.config.supports_decoding:
        return
    samples = draw(Checkpoint("training", model), 16)
    images = list(samples.reshape(len(samples), model.config.pixels, -1))
    write_atomically(folder / "samples.png", to_grid(images, model.config, 4))
