"""``scanline evaluate``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scanline.service.commands.options import (
    DataDir,
    Download,
    ImagesDir,
    ModelName,
    WeightsDir,
)


def evaluate(
    model: ModelName = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist or cifar10; by the model's name")
    ] = None,
    images: ImagesDir = None,
    label: Annotated[bool, typer.Option("--label", help="Give the true label too.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the figure into the checkpoint's metadata.")
    ] = False,
    weights: WeightsDir = None,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Measure a model's exact bits/dim on a test set, with its standard error."""
    from tqdm import tqdm

    from scanline.model.checkpoint import load_one
    from scanline.model.figures import measure, record_figure
    from scanline.model.runs import test_data

    if record and limit:
        raise ValueError("--record is for the whole set: leave --limit out")
    checkpoint = load_one(weights, model)
    data = test_data(checkpoint.model.config, dataset, images, data_dir, download)
    data = data.take(slice(limit)) if limit else data
    with tqdm(total=len(data), unit="image", file=sys.stderr) as bar:
        result = measure(checkpoint, data, with_label=label, progress=bar.update)
    how = "with the true label" if label else "without a label"
    typer.echo(f"{checkpoint.name}: {result}, {how}" + (f" ({data.note})" if data.note else ""))
    if record:
        record_figure(checkpoint, weights, data, result, with_label=label)
