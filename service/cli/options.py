"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer


def check_compatible(mode: str, given: Sequence[str], *allowed: str) -> None:
    """Raise ``ValueError`` if an option has no effect in a mode.

    Args:
        mode: The option that selects the mode.
        given: The options on the command line.
        *allowed: The other options of this mode.
    """
    known = {mode.partition(" ")[0], *allowed}
    if others := [name for name in given if name not in known]:
        raise ValueError(
            f"{', '.join(others)}: not allowed with {mode}, which takes {', '.join(allowed)}"
        )


def given_options(context: typer.Context) -> dict[str, Any]:
    """Return the value of each parameter given on the command line, by the parameter's name."""
    source = context.get_parameter_source
    return {
        name: value
        for name, value in context.params.items()
        if (origin := source(name)) is not None and origin.name == "COMMANDLINE"
    }


def given_flags(context: typer.Context, ignored: Collection[str] = ()) -> list[str]:
    """Return the options given on the command line as ``--name``, without ``ignored`` ones."""
    return [f"--{name.replace('_', '-')}" for name in given_options(context) if name not in ignored]


def limit_seed(bits: int) -> Callable[[int], int]:
    """Return a callback that refuses larger seeds; as ``max``, the limit would fill the help."""

    def check(seed: int) -> int:
        if seed >> bits:
            raise typer.BadParameter(f"must be less than 2^{bits}")
        return seed

    return check


ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", help="Name of a checkpoint. Default: the one with the fewest steps per image."
    ),
]
WeightsDir = Annotated[
    Path | None,
    typer.Option("--weights", help="Folder of checkpoints. Default: the shipped ones."),
]
Backend = Annotated[str, typer.Option(help="auto, reference, native or triton.")]
Seed = Annotated[
    int,
    typer.Option(min=0, callback=limit_seed(64), help="Image j is drawn with the seed SEED + j."),
]
Label = Annotated[str | None, typer.Option(help="A class by name or number, or random.")]
Temperature = Annotated[
    float,
    typer.Option(
        help="0 to 2: 1 samples from the model's distribution, 0 takes the most likely value."
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Keep only the most likely values, up to this total probability (above 0, at most "
        "1). Default: the model's."
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(help="Strength of the label, 0 to 10. Default: the model's."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: all cores.")]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder of the data sets. Also SCANLINE_DATA_DIR.",
        rich_help_panel="Data",
    ),
]
ImagesDir = Annotated[
    Path | None,
    typer.Option(
        "--images",
        help="A folder of pictures. Its subfolders are classes.",
        rich_help_panel="Data",
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=256,
        help="Width and height in pixels to which --images are scaled. Default: 28, or the "
        "resumed run's size.",
        rich_help_panel="Data",
    ),
]
Grey = Annotated[
    bool, typer.Option("--grey", help="Convert --images to grey.", rich_help_panel="Data")
]
Download = Annotated[
    bool, typer.Option(help="Download the data set if it is missing.", rich_help_panel="Data")
]
Metadata = Annotated[
    bool,
    typer.Option(
        envvar="SCANLINE_PNG_METADATA",
        help="Store the recipe (model, seed and options) in the PNG, for `scanline verify`.",
    ),
]
Scale = Annotated[int, typer.Option(min=1, max=32, help="Enlarge by this factor.")]
Fit = Annotated[
    Literal["exact", "cover", "contain"],
    typer.Option(help="For a picture of another size: refuse, crop, or add a border."),
]
