"""What commands draw without a server: grids of a few images, and how a run gets on."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from tqdm import tqdm

from scanline.model.checkpoint import Checkpoint
from scanline.model.decoders.opening import open_decoder
from scanline.model.drawing import draw
from scanline.model.files import write_atomically
from scanline.model.network import LinearTransformer
from scanline.model.training.curve import draw_curve
from scanline.service.engine import Engine
from scanline.service.generation import Spec
from scanline.service.pictures import to_grid
from scanline.service.queue import Limits

log = logging.getLogger("scanline.drawing")

SLOTS = 64


def draw_grid(
    checkpoint: Checkpoint, spec: Spec, out: Path, scale: int, backend: str,
    threads: int | None = None,
) -> None:  # fmt: skip
    """Draw images with an engine of its own, and write it as a PNG grid.

    Raises ``ValueError`` before it draws where the grid could not be written.
    """
    _check_target(out)
    config = checkpoint.model.config
    decoder = open_decoder(
        checkpoint.model, min(spec.n * spec.slots, max(SLOTS, spec.slots)), backend, threads,
        checkpoint.native_precision,
    )  # fmt: skip
    engine = Engine(checkpoint.name, decoder, Limits(max_waiting=spec.n))
    engine.start()
    try:
        generation = engine.queue.submit(spec)
        total = spec.n * (config.pixels - spec.prefix)
        with (
            engine.queue.reading(generation),
            tqdm(total=total, unit="pixel") as bar,
        ):
            while not generation.finished:
                time.sleep(0.05)
                bar.update(generation.drawn - bar.n)
            bar.update(generation.drawn - bar.n)
    finally:
        engine.close(drain=0)
    if generation.error:
        raise RuntimeError(generation.error)
    for warning in generation.warnings:
        log.warning("%s", warning)
    grid = to_grid([image.read(0, config.pixels) for image in generation.images], config, scale)
    write_atomically(out, grid)


def _check_target(out: Path) -> None:
    """Raise ``ValueError`` where no picture can be written: drawing it first may take minutes."""
    if out.is_dir():
        raise ValueError(f"{out} is a folder: name a file in it, as {out / 'samples.png'}")
    if out.exists() and not out.is_file():
        return  # a FIFO or a device, which is written into
    if out.suffix.lower() != ".png" and (out.suffix or not out.exists()):
        raise ValueError(f"{out} would hold a PNG: name a file that ends in .png")
    try:
        folder = out.resolve().parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # the folder takes files, from this user
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}): name another file") from None


def show_progress(model: LinearTransformer, folder: Path) -> None:
    """Draw how a run stands into its folder: ``curve.png``, and ``samples.png`` of equal seeds.

    There are no samples of a network that does not draw step by step.
    """
    draw_curve(folder / "log.jsonl", folder / "curve.png")
    if not model.config.draws_by_steps:
        return
    drawn = draw(Checkpoint("training", model), 16)
    images = list(drawn.reshape(len(drawn), model.config.pixels, -1))
    write_atomically(folder / "samples.png", to_grid(images, model.config, 4))
