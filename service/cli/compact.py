"""``scanline compact``: checkpoints in half the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compact(
    file: Annotated[Path, typer.Argument(help="Checkpoint to read.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
) -> None:
    """Store the matrices of a checkpoint as 16-bit floats, in half the bytes."""
    from scanline.model.checkpoint import load_checkpoint, save_checkpoint
    from scanline.model.compact import compact as round_matrices
    from scanline.service.cli.import_weights import check_new_weights

    check_new_weights(out)
    checkpoint = round_matrices(load_checkpoint(file))
    save_checkpoint(out, checkpoint.model, checkpoint.facts)
    before, after = (path.stat().st_size / 1e6 for path in (file, out))
    typer.echo(
        f"wrote {out}: {after:.1f} MB instead of {before:.1f} MB; measure it with: "
        f"scanline evaluate --weights {out.parent} --model {out.stem}"
    )
