"""Checkpoints of the paper's authors, made ours."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from scanline.model.checkpoint import Checkpoint, CheckpointError, build_network, load_torch_file
from scanline.model.config import PRESETS, ModelConfig

# The authors' names for a layer's parts, and ours.
_PAPER_PARTS = {
    "attention.query_projection": "attention.query",
    "attention.key_projection": "attention.key",
    "attention.value_projection": "attention.value",
    "attention.out_projection": "attention.out",
    "linear1": "linear1",
    "linear2": "linear2",
    "norm1": "norm1",
    "norm2": "norm2",
}


def import_paper_checkpoint(path: Path, preset: str, first_value: int = 0) -> Checkpoint:
    """Turn a checkpoint of the paper's authors (a PyTorch file of tensors) into one of ours.

    ``preset`` names the network, ``mnist-paper`` or ``cifar10-paper``. Their network never models
    an image's first value: samples begin with ``first_value`` unless another is known. Raises
    ``CheckpointError`` where the file is not such a network.
    """
    if preset not in ("mnist-paper", "cifar10-paper"):
        raise CheckpointError(f"preset must be mnist-paper or cifar10-paper, not {preset!r}")
    loaded = load_torch_file(path)
    for key in ("model_state", "model_state_dict", "state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items()
    ):
        raise CheckpointError(f"{path} holds no dictionary of tensors")
    names = {"value_embedding.weight": "input.value_embedding.weight"}
    for part in ("weight", "bias"):
        names[f"transformer.norm.{part}"] = f"norm.{part}"
        names[f"predictor.{part}"] = f"head.predictor.{part}"
        for layer in range(PRESETS[preset].n_layers):
            for theirs, ours in _PAPER_PARTS.items():
                theirs = f"transformer.layers.{layer}.{theirs}.{part}"
                names[theirs] = f"blocks.{layer}.{ours}.{part}"
    tensors: dict[str, Tensor] = {}
    for key, tensor in loaded.items():
        name = str(key).removeprefix("module.")
        if not name.endswith("pos_embedding.pe"):  # computed, never learned
            tensors[names.get(name, name)] = tensor
    fields = PRESETS[preset].to_dict() | {"start": "given", "first_value": first_value}
    model = build_network(ModelConfig.from_dict(fields), tensors, f"{path} as {preset}")
    return Checkpoint(preset, model, {"imported_from": path.name})
