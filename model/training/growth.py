"""Growing a network: what a smaller one has learned, as the start of a larger that draws the same.

A new layer is a copy of the one below it, its two projections back into the stream at zero, so that
it adds nothing yet and learns at once (LLaMA Pro, Wu et al. 2024, section 3.1).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from scanline.model.checkpoint import CheckpointError
from scanline.model.config import ModelConfig

_BACK = ("attention.out.", "linear2.")  # a block's maps back into the stream


def incompatible_fields(small: ModelConfig, large: ModelConfig) -> list[str]:
    """Name the fields in which no growth makes ``large`` of ``small``.

    The short convolution may be added, and layers to a network that normalises first.
    """
    theirs, mine = small.to_dict(), large.to_dict()
    if small.short_conv == "none":
        theirs["short_conv"] = mine["short_conv"]
    if small.norm == "pre" and small.n_layers < large.n_layers:
        theirs["n_layers"] = mine["n_layers"]
    return [name for name, value in mine.items() if theirs[name] != value]


def check_growable(path: Path, small: ModelConfig, large: ModelConfig) -> None:
    """Raise ``CheckpointError`` unless ``large`` can be made of the checkpoint's ``small``."""
    if differ := incompatible_fields(small, large):
        raise CheckpointError(
            f"{path} is of another network ({', '.join(differ)}); "
            "start from one of the same, or of fewer layers"
        )


def grow(tensors: dict[str, Tensor], small: ModelConfig, large: ModelConfig) -> dict[str, Tensor]:
    """Spread the layers of ``small``'s tensors over ``large``'s, new ones after those they copy.

    Gives ``large``'s tensors but those ``small`` has nothing of, as its short convolutions, which
    are the identity in a new network.
    """
    result = {name: t for name, t in tensors.items() if not name.startswith("blocks.")}
    earlier = None
    for layer in range(large.n_layers):
        source = layer * small.n_layers // large.n_layers
        for name, tensor in tensors.items():
            if not name.startswith(f"blocks.{source}."):
                continue
            part = name.removeprefix(f"blocks.{source}.")
            new = source == earlier and part.startswith(_BACK)
            result[f"blocks.{layer}.{part}"] = torch.zeros_like(tensor) if new else tensor
        earlier = source
    return result
