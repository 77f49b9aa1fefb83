"""``scanline import``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_weights(
    file: Annotated[Path, typer.Argument(help="A PyTorch checkpoint of the paper's authors.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    preset: Annotated[str, typer.Option(help="mnist-paper or cifar10-paper.")] = "mnist-paper",
    first_value: Annotated[
        int, typer.Option(min=0, max=255, help="Samples begin with it: theirs never model it.")
    ] = 0,
) -> None:
    """Turn a checkpoint of the paper's authors into one that can be served."""
    from scanline.model.checkpoint import save_checkpoint
    from scanline.model.paper_checkpoint import import_paper_checkpoint

    if out.suffix != ".safetensors":
        raise ValueError(f"{out} must end in .safetensors, or it would not be found to be served")
    if out.exists():
        raise ValueError(f"{out} is there already: name another file, or delete it first")
    checkpoint = import_paper_checkpoint(file, preset, first_value)
    save_checkpoint(out, checkpoint.model, checkpoint.facts)
    typer.echo(f"wrote {out}; serve it with: scanline serve --weights {out.parent}")
