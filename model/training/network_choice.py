"""Choice of the network to train: a preset, a checkpoint's sizes, and a user's overrides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scanline.model.checkpoint import read_config
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.training.growth import check_growable

_DEFAULT_LAYERS = 4  # for a user's own images: there are few of them and little time
# Fields taken from the checkpoint that a run starts from.
_START_FIELDS = (
    "n_layers", "d_model", "d_ff", "n_heads", "attention", "feature_map", "lsh_chunk",
    "lsh_combine",
)  # fmt: skip
# Fields in which a run equals its preset; a preset's sizes and parts may change between versions.
_IDENTIFYING_FIELDS = (
    "height", "width", "channels", "classes", "input", "order", "head", "norm", "activation",
    "positions",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NetworkOverrides:
    """Changes to a preset's network; None keeps the preset's value.

    ``width`` sets ``d_model``, and ``d_ff`` to four times as much unless ``feed_forward`` is given.
    """

    layers: int | None = None
    width: int | None = None
    feed_forward: int | None = None
    heads: int | None = None
    attention: str | None = None
    feature_map: str | None = None
    lsh_chunk: int | None = None
    lsh_combine: str | None = None

    def apply(self, network: ModelConfig) -> ModelConfig:
        """Return the changed network; raise ``ValueError`` if it is invalid."""
        fields: dict[str, Any] = {
            "n_layers": self.layers, "d_model": self.width, "n_heads": self.heads,
            "d_ff": self.feed_forward or (None if self.width is None else 4 * self.width),
            "attention": self.attention, "feature_map": self.feature_map,
            "lsh_chunk": self.lsh_chunk, "lsh_combine": self.lsh_combine,
        }  # fmt: skip
        return replace(network, **{n: value for n, value in fields.items() if value is not None})


def choose_network(
    preset: str | None,
    data: Dataset,
    overrides: NetworkOverrides = NetworkOverrides(),
    *,
    start_from: Path | None = None,
) -> ModelConfig:
    """Choose the network of a new run.

    Args:
        preset: Name of a preset; None chooses the one closest to the data.
        data: Images to train on; they set size, channels and classes if there is no preset.
        overrides: Changes to the chosen network.
        start_from: Checkpoint whose layers, widths and attention the network takes over.

    Raises:
        ValueError: If the network is invalid.
        CheckpointError: If the checkpoint's network cannot be grown into the chosen one.
    """
    if preset is not None:
        network = PRESETS[preset]
    else:
        height, width, channels = data.images.shape[1:]
        closest = PRESETS["mnist" if channels == 1 else "cifar10"]
        network = replace(
            closest, height=height, width=width, classes=data.classes, n_layers=_DEFAULT_LAYERS
        )
    if start_from is None:
        return overrides.apply(network)
    start = read_config(start_from)
    network = replace(network, **{name: getattr(start, name) for name in _START_FIELDS})
    network = overrides.apply(network)
    check_growable(start_from, start, network)
    return network


def check_is_run_of(preset: str | None, resumed: ModelConfig) -> None:
    """Raise ``ValueError`` if a resumed run draws other images than a preset or is built otherwise.

    Args:
        preset: Name of a preset; None accepts every network.
        resumed: The run's network.
    """
    wanted = PRESETS[preset] if preset is not None else resumed
    if different := [
        name for name in _IDENTIFYING_FIELDS if getattr(wanted, name) != getattr(resumed, name)
    ]:
        raise ValueError(
            f"the run trains another network than {preset} ({', '.join(different)}): name the "
            "preset or --images that it was started with, or choose another folder with --out"
        )
