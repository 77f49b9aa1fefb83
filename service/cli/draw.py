"""``scanline sample`` and ``scanline complete``: pictures without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scanline.service.cli.options import (
    Backend,
    Fit,
    Guidance,
    Label,
    ModelName,
    Scale,
    Seed,
    Temperature,
    Threads,
    TopP,
    WeightsDir,
)


def sample(
    out: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("samples.png"),
    n: Annotated[int, typer.Option("-n", min=1, help="Images to draw.")] = 16,
    model: ModelName = None,
    label: Label = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    guidance: Guidance = None,
    scale: Scale = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Draw images without a server, and write them as one PNG grid."""
    from scanline.model.checkpoint import load_by_name
    from scanline.model.sampling import resolve
    from scanline.service.cli.grid import draw_grid
    from scanline.service.engine.generation import GenerationSpec

    checkpoint = load_by_name(weights, model)
    params = resolve(checkpoint.model.config, checkpoint.defaults, label, top_p, guidance)
    spec = GenerationSpec(n=n, seed=seed, temperature=temperature, **params._asdict())
    draw_grid(checkpoint, spec, out, scale, backend, threads)
    typer.echo(f"wrote {out}")


def complete(
    picture: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What to complete.")],
    out: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("completions.png"),
    rows: Annotated[
        int | None, typer.Option(help="Known rows from the top; if none, transparent is unknown.")
    ] = None,
    fit: Fit = "cover",
    n: Annotated[int, typer.Option("-n", min=1, help="Ways to complete it.")] = 4,
    model: ModelName = None,
    label: Label = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    top_p: TopP = None,
    guidance: Guidance = None,
    particles: Annotated[
        int,
        typer.Option(help="Slots an image, 1 to 64, so that what is known after a hole guides it."),
    ] = 1,
    scale: Scale = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Complete a picture several ways without a server, and write them as one PNG grid."""
    from scanline.model.checkpoint import load_by_name
    from scanline.model.sampling import resolve
    from scanline.service.cli.grid import draw_grid
    from scanline.service.engine.generation import GenerationSpec
    from scanline.service.images import MissingMaskError, read_masked_image

    if out.exists() and out.samefile(picture):
        raise ValueError(f"{out} is the picture itself: name another file to write")
    checkpoint = load_by_name(weights, model)
    config = checkpoint.model.config
    if rows is not None and not 0 <= rows < config.height:
        raise ValueError(f"--rows must be 0 to {config.height - 1}, to leave something to draw")
    with picture.open("rb") as file:
        try:
            canvas, known = read_masked_image(file, None, rows, fit, config)
        except MissingMaskError:
            raise ValueError(
                "nothing says which part to draw: give --rows, or a picture that is transparent "
                "where it is unknown"
            ) from None
    params = resolve(config, checkpoint.defaults, label, top_p, guidance, particles)
    spec = GenerationSpec(
        n=n,
        seed=seed,
        temperature=temperature,
        canvas=canvas,
        known=known,
        **params._asdict(),
    )
    draw_grid(checkpoint, spec, out, scale, backend, threads)
    typer.echo(f"wrote {out}")
