"""Growing a trained network into a larger one that computes the same function at first.

A new layer copies the one below it, except that its two projections into the residual stream are
zero: it adds nothing at first and receives gradients at once (LLaMA Pro, Wu et al. 2024,
section 3.1). New features of the feed-forward networks have random input weights and output weights
of zero, with the same effect.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from scanline.model.checkpoint import CheckpointError
from scanline.model.config import ModelConfig

_RESIDUAL_PROJECTIONS = ("attention.out.", "linear2.")


def incompatible_fields(small: ModelConfig, large: ModelConfig) -> list[str]:
    """List the config fields that prevent growing ``small`` into ``large``.

    Growth may add the short convolution, feed-forward features, and layers if the network is
    pre-norm.
    """
    before, after = asdict(small), asdict(large)
    if small.short_conv == "none":
        before["short_conv"] = after["short_conv"]
    if small.norm == "pre" and small.n_layers < large.n_layers:
        before["n_layers"] = after["n_layers"]
    if small.d_ff < large.d_ff:
        before["d_ff"] = after["d_ff"]
    return [name for name, value in after.items() if before[name] != value]


def check_growable(path: Path, small: ModelConfig, large: ModelConfig) -> None:
    """Raise ``CheckpointError`` if the checkpoint's ``small`` cannot be grown into ``large``."""
    fields = incompatible_fields(small, large)
    if "classes" in fields:
        raise CheckpointError(
            f"{path} has {_describe(small.classes)}, but the images have "
            f"{_describe(large.classes)}: train on images with the checkpoint's classes, or leave "
            "--from out"
        )
    if fields:
        raise CheckpointError(
            f"{path} holds another network ({', '.join(fields)}); "
            "start from the same network, or from one with fewer layers or feed-forward features"
        )


def _describe(classes: tuple[str, ...]) -> str:
    names = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
    return f"the classes {names}" if classes else "no classes"


def grow(
    tensors: dict[str, Tensor], small: ModelConfig, large: ModelConfig, initial: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Spread the layers of ``small`` evenly over ``large``, each new layer after its source.

    Args:
        tensors: State dict of ``small``.
        small: Config of the trained network.
        large: Config of the new network.
        initial: State dict of a new network with random weights, for the new features.

    Returns:
        State dict of ``large`` without the tensors that ``small`` lacks. These are its short
        convolutions, which a new network initialises as the identity.
    """
    result = {name: t for name, t in tensors.items() if not name.startswith("blocks.")}
    previous = None
    for layer in range(large.n_layers):
        source = layer * small.n_layers // large.n_layers
        for name, tensor in tensors.items():
            if not name.startswith(f"blocks.{source}."):
                continue
            part = name.removeprefix(f"blocks.{source}.")
            zero = source == previous and part.startswith(_RESIDUAL_PROJECTIONS)
            grown = f"blocks.{layer}.{part}"
            widened = _widen(part, tensor, initial[grown]) if small.d_ff < large.d_ff else tensor
            result[grown] = torch.zeros_like(widened) if zero else widened
        previous = source
    return result


def _widen(part: str, tensor: Tensor, initial: Tensor) -> Tensor:
    """Add the new features of ``initial`` to a tensor of the feed-forward network."""
    if part.startswith("linear1."):
        return torch.cat([tensor, initial[len(tensor) :].to(tensor)])
    if part == "linear2.weight":
        return torch.cat([tensor, torch.zeros_like(initial[:, tensor.shape[1] :]).to(tensor)], 1)
    return tensor
