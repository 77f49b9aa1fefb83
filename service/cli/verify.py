"""``scanline verify``: draw the picture in a file again, and compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanline.service.cli.options import Backend, Fit, Threads, WeightsDir

if TYPE_CHECKING:
    from scanline.model.checkpoint import Checkpoint
    from scanline.service.cli.grid import DrawOptions
    from scanline.service.recipes.recipe import Recipe
    from scanline.service.recipes.verification import Picture, Verification


def verify(
    picture: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            allow_dash=True,
            help="A PNG that Scanline saved, or - for standard input.",
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Of a completion: the picture that was completed."
        ),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Number of rows of --source that were kept.")
    ] = None,
    fit: Fit = "cover",
    *,
    changes: Annotated[
        Path | None, typer.Option(help="Write a PNG that shows the changed pixels in red.")
    ] = None,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    isa: Annotated[
        str | None, typer.Option(help="Instruction set of the native backend, such as avx2.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Draw the picture in a PNG again, and say whether it is the same to the pixel.

    The exit status is 0 if it is.
    """
    from scanline.model.atomic_files import write_atomically
    from scanline.service.cli.grid import DrawOptions, check_target
    from scanline.service.cli.pictures import open_picture, read_file
    from scanline.service.recipes.verification import Verdict, read_picture

    if rows is not None and source is None:
        raise ValueError("--rows needs --source, the picture that was completed")
    if changes is not None:
        check_target(changes)
    opened = read_picture(read_file(picture), open_picture)
    options = DrawOptions(backend, threads, isa)
    given = None if source is None else (source, rows, fit)
    verdict = _verify(opened, weights, options, given)
    typer.echo(f"{picture}: {verdict.message}")
    if changes is not None and verdict.changes is not None:
        write_atomically(changes, verdict.changes)
        typer.echo(f"wrote {changes}")
    if verdict.verdict is Verdict.SOURCE_MISSING and source is None:
        typer.echo("Pass it with --source, and with --rows if a number of rows was kept.")
    if verdict.verdict is not Verdict.SAME:
        raise typer.Exit(1)


def _verify(
    picture: Picture,
    weights: Path | None,
    options: DrawOptions,
    given: tuple[Path, int | None, Fit] | None,
) -> Verification:
    """Draw a picture's recipe and compare."""
    from scanline.model.sampling import SamplingError, resolve
    from scanline.service.cli.grid import draw_generation
    from scanline.service.cli.pictures import open_picture, read_file
    from scanline.service.engine.generation import GenerationSpec
    from scanline.service.images import read_masked_image
    from scanline.service.recipes.verification import (
        check_size,
        compare,
        find_given,
        no_recipe,
        options_of,
        other_weights,
        source_missing,
    )

    recipe, pixels = picture
    if recipe is None:
        return no_recipe()
    checkpoint = _find(recipe, weights)
    if checkpoint is None or checkpoint.digest != recipe.weights:
        return other_weights(recipe, None if checkpoint is None else checkpoint.digest)
    config = checkpoint.model.config
    if resized := check_size(recipe, pixels, config):
        return resized
    try:
        sampling = resolve(config, checkpoint.defaults, options_of(recipe))
    except SamplingError as error:
        raise ValueError(f"the recipe in the file does not fit the model: {error}") from None
    spec = GenerationSpec(n=recipe.n, seed=recipe.seed, sampling=sampling)
    if recipe.given is not None:
        completion = None
        if given is None:
            completion = find_given(recipe, pixels, config, spec)
        else:
            source, rows, fit = given
            file = read_file(source)
            canvas, known = read_masked_image(file, None, rows, fit, config, open_picture)
            one = replace(spec, canvas=canvas, known=known)
            completion = one if one.given_digest == recipe.given else None
        if completion is None:
            return source_missing(recipe)
        spec = completion
    generation, here = draw_generation(checkpoint, spec, options)
    images = [image.read(0, config.pixels) for image in generation.images]
    return compare(recipe, pixels, images, config, here)


def _find(recipe: Recipe, weights: Path | None) -> Checkpoint | None:
    """Find the checkpoint with a recipe's weights, or else with its name."""
    from scanline.model.checkpoint import SHIPPED_WEIGHTS, find_checkpoints, load_checkpoint

    paths = find_checkpoints(weights or SHIPPED_WEIGHTS)
    named = None
    for name in sorted(paths, key=lambda name: name != recipe.model):
        checkpoint = load_checkpoint(paths[name])
        if checkpoint.digest == recipe.weights:
            return checkpoint
        named = checkpoint if name == recipe.model else named
    return named
