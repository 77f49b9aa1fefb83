"""Import of the paper authors' checkpoints."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from scanline.model.checkpoint import Checkpoint, CheckpointError, build_network, load_torch_file
from scanline.model.config import PRESETS, ModelConfig

# Names of a layer's modules: the authors' and ours.
_MODULE_NAMES = {
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
    """Convert a checkpoint of the paper's authors into one of ours.

    Args:
        path: PyTorch file with a state dict, possibly nested or with the prefix ``module.``.
        preset: the network, ``mnist-paper`` or ``cifar10-paper``.
        first_value: first value of samples, 0 to 255, unless it is given; the authors' network does
            not model it.

    Raises:
        CheckpointError: the file does not hold this network.
    """
    if preset not in ("mnist-paper", "cifar10-paper"):
        raise CheckpointError(f"preset must be mnist-paper or cifar10-paper; got {preset!r}")
    loaded = load_torch_file(path)
    for key in ("model_state", "model_state_dict", "state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items()
    ):
        raise CheckpointError(f"{path} does not hold a state dict of tensors")
    names = {"value_embedding.weight": "input.value_embedding.weight"}
    for part in ("weight", "bias"):
        names[f"transformer.norm.{part}"] = f"norm.{part}"
        names[f"predictor.{part}"] = f"head.predictor.{part}"
        for layer in range(PRESETS[preset].n_layers):
            for theirs, ours in _MODULE_NAMES.items():
                theirs = f"transformer.layers.{layer}.{theirs}.{part}"
                names[theirs] = f"blocks.{layer}.{ours}.{part}"
    tensors: dict[str, Tensor] = {}
    for key, tensor in loaded.items():
        name = str(key).removeprefix("module.")
        if not name.endswith("pos_embedding.pe"):  # not a parameter: computed
            tensors[names.get(name, name)] = tensor
    fields = PRESETS[preset].to_dict() | {"start": "given", "first_value": first_value}
    model = build_network(ModelConfig.from_dict(fields), tensors, f"{path} as {preset}")
    return Checkpoint(preset, model, {"imported_from": path.name})
