"""``scanline verify``: draw the picture in a file again, and compare."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scanline.service.cli.options import Backend, Fit, Threads, WeightsDir, given_flags

if TYPE_CHECKING:
    from scanline.model.checkpoint import Checkpoint
    from scanline.service.recipes.recipe import Recipe
    from scanline.service.recipes.verification import ReadSource, Verification


def verify(
    context: typer.Context,
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
    threads: Threads = None,
) -> None:
    """Draw the picture in a PNG again, and say whether it is the same to the pixel.

    The exit status is 0 if it is the same, and 1 otherwise.
    """
    from scanline.model.atomic_files import write_atomically
    from scanline.service.cli.pictures import check_not_replaced, check_target, read_known_pixels
    from scanline.service.recipes.verification import Verdict

    for option in ("--rows", "--fit"):
        if source is None and option in given_flags(context):
            raise ValueError(f"{option} needs --source, the picture that was completed")
    if changes is not None:
        for read in filter(None, (picture, source)):
            check_not_replaced(read, changes)
        check_target(changes)
    read_source = None if source is None else partial(read_known_pixels, source, rows, fit)
    verdict = _verify(picture, weights, backend, threads, read_source)
    typer.echo(f"{picture}: {verdict.message}")
    if changes is not None and verdict.changes is not None:
        write_atomically(changes, verdict.changes)
        typer.echo(f"wrote {changes}", err=True)
    if verdict.verdict is Verdict.SOURCE_MISSING:
        typer.echo("Pass it with --source, and with --rows if a number of rows was kept.")
    elif verdict.verdict is Verdict.OTHER_WEIGHTS:
        typer.echo("Pass the folder of the weights that drew it with --weights.")
    if verdict.verdict is not Verdict.SAME:
        raise typer.Exit(1)


def _verify(
    picture: Path,
    weights: Path | None,
    backend: str,
    threads: int | None,
    read_source: ReadSource | None,
) -> Verification:
    """Draw a picture's recipe and compare."""
    from scanline.model.sampling import SamplingError, resolve
    from scanline.service.cli.pictures import open_picture, read_file
    from scanline.service.cli.temporary_engine import draw_generation
    from scanline.service.engine.generation import GenerationSpec
    from scanline.service.recipes import verification as verifying

    recipe, pixels = verifying.read_picture(read_file(picture), open_picture)
    if recipe is None:
        return verifying.no_recipe()
    checkpoint = _find(recipe, weights)
    if checkpoint is None or checkpoint.digest != recipe.weights:
        here = None if checkpoint is None else checkpoint.digest
        return verifying.other_weights(recipe, here)
    config = checkpoint.model.config
    saved = verifying.scale_down(recipe, pixels, config)
    if isinstance(saved, verifying.Verification):
        return saved
    try:
        sampling = resolve(config, checkpoint.defaults, verifying.options_of(recipe))
    except SamplingError as error:
        raise ValueError(f"the recipe in the file does not fit the model: {error}") from None
    spec = GenerationSpec(n=recipe.n, seed=recipe.seed, sampling=sampling)
    if recipe.given is not None:
        completion = verifying.add_given(recipe, saved, config, spec, read_source)
        if isinstance(completion, verifying.Verification):
            return completion
        spec = completion
    elif read_source is not None:
        raise ValueError("this picture is not a completion; leave out --source")
    generation, provenance = draw_generation(checkpoint, spec, backend, threads)
    images = [image.read(0, config.pixels) for image in generation.images]
    return verifying.compare(recipe, saved, images, config, provenance)


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
