"""``scanline import`` and ``scanline compact``: conversion of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check_new_weights(out: Path) -> None:
    """Raise ``ValueError`` if a new checkpoint would not be found, or would replace a file."""
    if out.suffix != ".safetensors":
        raise ValueError(
            f"{out} must end in .safetensors, because the server only looks for such files"
        )
    if out.exists():
        raise ValueError(f"{out} exists already: name another file, or delete it first")


def import_weights(
    file: Annotated[Path, typer.Argument(help="PyTorch checkpoint of the paper's authors.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    preset: Annotated[str, typer.Option(help="mnist-paper or cifar10-paper.")] = "mnist-paper",
    first_value: Annotated[
        int,
        typer.Option(
            min=0, max=255, help="First value of every sample, which their models do not predict."
        ),
    ] = 0,
    heads: Annotated[
        int | None,
        typer.Option(min=1, help="Attention heads per layer. Default: one per 32 features."),
    ] = None,
) -> None:
    """Convert a checkpoint of the paper's authors into one that Scanline can use."""
    from scanline.model.checkpoint import save_checkpoint
    from scanline.model.paper_checkpoint import import_paper_checkpoint

    check_new_weights(out)
    checkpoint = import_paper_checkpoint(file, preset, first_value, heads)
    save_checkpoint(out, checkpoint.model, checkpoint.facts)
    config = checkpoint.model.config
    typer.echo(f"{config.n_layers} layers of {config.d_model} features and {config.n_heads} heads")
    typer.echo(f"wrote {out}; serve it with: scanline serve --weights {out.parent}")


def compact(
    file: Annotated[Path, typer.Argument(help="Checkpoint to read.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
) -> None:
    """Store the matrices of a checkpoint as 16-bit floats, in half the bytes."""
    from scanline.model.checkpoint import load_checkpoint, save_checkpoint
    from scanline.model.compact import compact as round_matrices

    check_new_weights(out)
    checkpoint = round_matrices(load_checkpoint(file))
    save_checkpoint(out, checkpoint.model, checkpoint.facts)
    before, after = (path.stat().st_size / 1e6 for path in (file, out))
    typer.echo(
        f"wrote {out}: {after:.1f} MB instead of {before:.1f} MB; measure it with: "
        f"scanline evaluate --weights {out.parent} --model {out.stem}"
    )
