"""Import of the paper authors' checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from scanline.model.checkpoint import Checkpoint, CheckpointError, build_network
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.torch_files import SAVE_TENSORS, load_torch_file

HEAD_SIZE = 32  # the authors' default number of features per attention head

# Wrappers that prefix the names of a state dict: DataParallel, torch.compile, Lightning.
_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|model)\.)+")
# The authors' names, and ours.
_LAYER = re.compile(r"transformer\.layers\.(0|[1-9]\d*)\.(.+)")
_PREFIXES = {
    "value_embedding.": "input.value_embedding.",
    "transformer.norm.": "norm.",
    "predictor.": "head.predictor.",
}


def import_paper_checkpoint(
    path: Path, preset: str, first_value: int = 0, heads: int | None = None
) -> Checkpoint:
    """Convert a checkpoint of the paper's authors into one of ours.

    The number of layers and their width are those of the tensors.

    Args:
        path: PyTorch file with a state dict, possibly nested, or with the prefixes of wrappers.
        preset: The kind of images, ``mnist-paper`` or ``cifar10-paper``.
        first_value: First value of samples, 0 to 255, unless it is given; the authors' network does
            not model it.
        heads: Attention heads per layer, which no tensor tells; by default one per 32 features.

    Raises:
        CheckpointError: If the file does not hold such a network.
    """
    if preset not in ("mnist-paper", "cifar10-paper"):
        raise CheckpointError(f"preset must be mnist-paper or cifar10-paper; got {preset!r}")
    tensors: dict[str, Tensor] = {}
    for key, tensor in _state_dict(path).items():
        name = _our_name(_WRAPPERS.sub("", key, count=1))
        if name in tensors:
            raise CheckpointError(f"{path} holds several tensors named {name!r}; {SAVE_TENSORS}")
        if not name.endswith("pos_embedding.pe"):  # not a parameter: computed
            tensors[name] = tensor
    fields = PRESETS[preset].to_dict() | {"start": "given", "first_value": first_value}
    try:
        config = ModelConfig.from_dict(fields | _sizes(fields, tensors, heads))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; choose --heads for its network") from None
    model = build_network(config, tensors, f"{path} as {preset}")
    return Checkpoint(preset, model, {"imported_from": path.name})


def _state_dict(path: Path) -> dict[str, Tensor]:
    """Read the state dict of a file; raise ``CheckpointError`` if there is none."""
    loaded = load_torch_file(path)
    for key in ("model_state", "model_state_dict", "state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict):
        raise CheckpointError(
            f"{path} does not hold a state dict of tensors, but a value of type "
            f"{type(loaded).__name__}; {SAVE_TENSORS}"
        )
    for name, tensor in loaded.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise CheckpointError(
                f"{path} does not hold a state dict of tensors: {name!r} is of type "
                f"{type(tensor).__name__}; {SAVE_TENSORS}"
            )
    return loaded


def _our_name(name: str) -> str:
    """Return our name of one of the authors' parameters; other names are returned as they are."""
    if layer := _LAYER.fullmatch(name):
        return f"blocks.{layer[1]}.{layer[2].replace('_projection.', '.')}"
    for theirs, ours in _PREFIXES.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _sizes(fields: dict[str, Any], tensors: dict[str, Tensor], heads: int | None) -> dict[str, int]:
    """Return the config's sizes according to the tensors; the preset's where one is missing."""
    layers = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}

    def rows(name: str, default: int) -> int:
        tensor = tensors.get(name)
        return default if tensor is None or tensor.ndim == 0 else len(tensor)

    d_model = rows("norm.weight", fields["d_model"])
    return {
        "n_layers": len(layers) or fields["n_layers"],
        "d_model": d_model,
        "d_ff": rows("blocks.0.linear1.weight", fields["d_ff"]),
        "n_heads": max(1, d_model // HEAD_SIZE) if heads is None else heads,
    }
