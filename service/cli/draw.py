"""``scanline sample`` and ``scanline complete``: images without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scanline.service.cli.options import (
    Backend,
    Fit,
    Guidance,
    Label,
    Metadata,
    ModelName,
    Scale,
    Seed,
    Temperature,
    Threads,
    TopP,
    WeightsDir,
)


def sample(
    out: Annotated[Path, typer.Argument(help="The PNG file to write.")] = Path("samples.png"),
    n: Annotated[int, typer.Option("-n", min=1, help="Number of images.")] = 16,
    model: ModelName = None,
    seed: Seed = 0,
    label: Label = None,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    guidance: Guidance = None,
    scale: Scale = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
    metadata: Metadata = True,
) -> None:
    """Draw images and write them as one PNG grid."""
    from scanline.model.checkpoint import load_by_name
    from scanline.model.sampling import SamplingOptions, resolve
    from scanline.service.cli.temporary_engine import draw_grid
    from scanline.service.engine.generation import GenerationSpec

    checkpoint = load_by_name(weights, model)
    options = SamplingOptions(label=label, temperature=temperature, top_p=top_p, guidance=guidance)
    params = resolve(checkpoint.model.config, checkpoint.defaults, options)
    spec = GenerationSpec(n=n, seed=seed, sampling=params)
    draw_grid(checkpoint, spec, out, scale, backend, threads, metadata)
    typer.echo(f"wrote {out}", err=True)


def complete(
    picture: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            allow_dash=True,
            help="The picture to complete, or - for standard input.",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The PNG file to write.")] = Path("completions.png"),
    rows: Annotated[
        int | None,
        typer.Option(help="Number of rows from the top to keep. Default: keep opaque pixels."),
    ] = None,
    fit: Fit = "cover",
    n: Annotated[int, typer.Option("-n", min=1, help="Number of completions.")] = 4,
    model: ModelName = None,
    seed: Seed = 0,
    label: Label = None,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    guidance: Guidance = None,
    particles: Annotated[
        int,
        typer.Option(
            help="Slots per image, 1 to 64. More let known pixels after a hole influence it."
        ),
    ] = 1,
    scale: Scale = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
    metadata: Metadata = True,
) -> None:
    """Complete a picture several times and write the results as one PNG grid."""
    from scanline.model.checkpoint import load_by_name
    from scanline.model.sampling import SamplingOptions, resolve
    from scanline.service.cli.pictures import check_not_replaced, read_known_pixels
    from scanline.service.cli.temporary_engine import draw_grid
    from scanline.service.engine.generation import GenerationSpec

    check_not_replaced(picture, out)
    checkpoint = load_by_name(weights, model)
    config = checkpoint.model.config
    canvas, known = read_known_pixels(picture, rows, fit, config)
    options = SamplingOptions(
        label=label, temperature=temperature, top_p=top_p, guidance=guidance, particles=particles
    )
    params = resolve(config, checkpoint.defaults, options)
    spec = GenerationSpec(n=n, seed=seed, sampling=params, canvas=canvas, known=known)
    draw_grid(checkpoint, spec, out, scale, backend, threads, metadata)
    typer.echo(f"wrote {out}", err=True)
