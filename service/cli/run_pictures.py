"""Pictures of a training run's progress: its curve and its samples."""

from __future__ import annotations

from pathlib import Path

from scanline.model.api import draw
from scanline.model.atomic_files import write_atomically
from scanline.model.checkpoint import Checkpoint
from scanline.model.network import LinearTransformer
from scanline.model.training.learning_curve import draw_curve
from scanline.service.images import to_grid

SAMPLES = 16
RECOMPUTED_SAMPLES = 4  # without a state, an image takes minutes


def save_progress(model: LinearTransformer, folder: Path) -> None:
    """Write ``curve.png``, and ``samples.png`` with the same seeds each time, into a run's folder.

    A network without a state draws by recomputation, and therefore fewer samples.
    """
    draw_curve(folder / "log.jsonl", folder / "curve.png")
    n = SAMPLES if model.config.has_state else RECOMPUTED_SAMPLES
    samples = draw(Checkpoint("training", model), n)
    images = list(samples.reshape(len(samples), model.config.pixels, -1))
    write_atomically(folder / "samples.png", to_grid(images, model.config, 4))
