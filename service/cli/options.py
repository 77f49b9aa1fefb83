"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer


def check_compatible(mode: str, given: Mapping[str, object], *allowed: str) -> None:
    """Raise ``ValueError`` on an option that means nothing beside a ``mode``, an option itself.

    ``given`` has every option, None where it was left out.
    """
    own = mode.partition(" ")[0]
    known = {own, *allowed}
    if others := [name for name, value in given.items() if value is not None and name not in known]:
        raise ValueError(f"{', '.join(others)}: not with {mode}, which takes {', '.join(allowed)}")


def reject_nan(value: float | None) -> float | None:
    """Refuse NaN, which is below no bound and above none."""
    if value != value:
        raise typer.BadParameter("NaN is no temperature")
    return value


ModelName = Annotated[
    str | None,
    typer.Option("--model", help="A checkpoint's name; of the fewest steps if none."),
]
WeightsDir = Annotated[
    Path | None, typer.Option("--weights", help="Folder of checkpoints; the shipped ones if none.")
]
Backend = Annotated[str, typer.Option(help="auto, reference, native or triton.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Image j has seed + j.")]
Temperature = Annotated[
    float,
    typer.Option(
        min=0.0, max=2.0, callback=reject_nan, help="1 is the model as it is, 0 likeliest."
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Keep the likeliest values of this share, above 0 to 1; the model's own if none."
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(help="How strongly to draw towards the label, 0 to 10; the model's own if none."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if left out.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets are; also SCANLINE_DATA_DIR.")
]
ImagesDir = Annotated[
    Path | None, typer.Option("--images", help="A folder of pictures; its sub-folders are classes.")
]
Size = Annotated[
    int | None,
    typer.Option(
        min=2, max=256, help="Pixels a side that --images get; 28, or a resumed run's, if none."
    ),
]
Grey = Annotated[bool, typer.Option("--grey", help="Make --images grey.")]
Download = Annotated[bool, typer.Option(help="Fetch the data set if it is not there.")]
Label = Annotated[str | None, typer.Option(help="A class, by name or number, or random.")]
Scale = Annotated[int, typer.Option(min=1, max=32, help="Enlarge by this factor.")]
Fit = Annotated[
    Literal["exact", "cover", "contain"], typer.Option(help="For a picture of another size.")
]
