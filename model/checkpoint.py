"""Checkpoints: safetensors files with the weights, the config and facts about training."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.model.atomic_files import write_atomically
from scanline.model.config import MAX_GUIDANCE, ModelConfig
from scanline.model.network import LinearTransformer

FORMAT = "scanline/2"
TRAINING_STATE = "training.pt"  # beside the checkpoint of a training run, to resume it
SHIPPED_WEIGHTS = Path(__file__).resolve().parent.parent / "weights"


class CheckpointError(ValueError):
    """Raised if a checkpoint cannot be used; the message says why and what to do."""


class SamplingDefaults(NamedTuple):
    """A model's default sampling: ``guidance`` (with a label) and ``top_p``."""

    guidance: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Checkpoint:
    """A network ready for use (``eval`` mode, float32), with the facts of its training."""

    name: str
    model: LinearTransformer
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def defaults(self) -> SamplingDefaults:
        """The sampling defaults in its facts, or 1 for both."""
        return SamplingDefaults(**self.facts.get("defaults", {}))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the config and the weights in hexadecimal, independent of the name."""
        digest = hashlib.sha256(json.dumps(self.model.config.to_dict(), sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    @property
    def native_precision(self) -> Precision | None:
        """The precision for the ``native`` backend; None for its default."""
        precision: Precision | None = self.facts.get("native_precision", {}).get("precision")
        return precision


def save_checkpoint(path: Path, model: LinearTransformer, facts: dict[str, Any]) -> None:
    """Write a model's weights with its config and facts, atomically.

    A matrix is stored in 16 bits if that changes no value, as after ``compact.py``.
    """
    tensors = {name: _shortest(tensor) for name, tensor in model.state_dict().items()}
    metadata = {
        "format": FORMAT,
        "config": json.dumps(model.config.to_dict()),
        "facts": json.dumps(facts),
    }
    write_atomically(path, safetensors.torch.save(tensors, metadata))


def _shortest(tensor: Tensor) -> Tensor:
    """Return a matrix in float16 if that changes no value, and other tensors as they are."""
    half = tensor.half()
    return half if tensor.ndim > 1 and torch.equal(half.to(tensor.dtype), tensor) else tensor


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise ``CheckpointError`` if it is missing, damaged or foreign."""
    config, facts, tensors = _read(path)
    return Checkpoint(path.stem, build_network(config, tensors, str(path)), facts)


def load_facts(path: Path) -> dict[str, Any]:
    """Read the facts of a checkpoint without its weights; raise ``CheckpointError``."""
    return _read(path, weights=False)[1]


def _read(
    path: Path, weights: bool = True
) -> tuple[ModelConfig, dict[str, Any], dict[str, Tensor]]:
    try:
        metadata, tensors = _read_file(path) if weights else (_read_metadata(path), {})
    except (FileNotFoundError, PermissionError):  # safetensors raises the first for the second too
        try:
            path.stat()
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint at {path}") from None
        except OSError:
            pass  # no permission for the folder
        raise CheckpointError(f"{path} cannot be read: permission denied") from None
    except (safetensors.SafetensorError, OSError) as error:
        if path.is_dir():
            raise CheckpointError(
                f"{path} is a folder: pass the file, such as {path / path.stem}.safetensors"
            ) from None
        if path.name == TRAINING_STATE:
            raise CheckpointError(
                f"{path} is the state of a training run; pass the .safetensors file beside it"
            ) from None
        raise CheckpointError(
            f"{path} is damaged or not a safetensors file ({error}); download or train it again, "
            "or convert a PyTorch file with `scanline import`"
        ) from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but not a Scanline checkpoint (its format is "
            f"{metadata.get('format')}, not {FORMAT}); "
            "train one with `scanline train`, or import one with `scanline import`"
        )
    try:
        config = ModelConfig.from_dict(json.loads(metadata["config"]))
        facts = json.loads(metadata.get("facts", "{}"))
        if not isinstance(facts, dict):
            raise ValueError(f"its facts are not a dictionary: {facts!r}")
        _check_facts(facts)
    except (
        AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise CheckpointError(f"{path} has invalid metadata: {error}") from None
    return config, facts, tensors


def _read_metadata(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        return file.metadata() or {}


def _read_file(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and the tensors of a file.

    The file is not mapped into memory: if it were truncated meanwhile, by ``cp`` for example, the
    process would end.
    """
    data = path.read_bytes()
    try:
        tensors = safetensors.torch.load(data)
    except KeyError as error:  # a dtype that torch lacks
        raise safetensors.SafetensorError(f"unknown dtype {error}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__") or {}, tensors


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise an error that ``load_checkpoint`` reports if a fact that is used is invalid."""
    defaults = SamplingDefaults(**facts.get("defaults", {}))
    if not (0 <= defaults.guidance <= MAX_GUIDANCE and 0 < defaults.top_p <= 1):
        raise ValueError(f"its defaults are out of range: {defaults._asdict()!r}")
    precision = facts.get("native_precision", {}).get("precision")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"its native_precision is unknown: {precision!r}")
    measured = [facts.get("test"), facts.get("test_with_label"), *(facts.get("validation") or ())]
    for result in measured:
        if result is not None and not _is_number(result["bits_per_dim"]):
            raise TypeError(f"its bits/dim are not a number: {result!r}")
    earlier = facts.get("started_from") or {}
    counts = [(facts, "images_seen"), (facts, "held_out"), (earlier, "images_seen")]
    for run, name in [*counts, *((one, "held_out") for one in earlier.get("runs", []))]:
        if not isinstance(number := run.get(name) or 0, int) or number < 0:
            raise TypeError(f"its {name} is not a count: {number!r}")


def _is_number(value: Any) -> bool:
    """Return True if it is a finite number; raise ``OverflowError`` if too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@contextlib.contextmanager
def _default_torch_settings() -> Iterator[None]:
    """Use torch's default dtype and device inside the block, and restore its random state after."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.random.fork_rng(devices=()):
            yield
    finally:
        torch.set_default_dtype(dtype)


def build_network(
    config: ModelConfig, tensors: dict[str, Tensor], source: str
) -> LinearTransformer:
    """Build a network from tensors; raise ``CheckpointError`` if they do not fit the config."""
    count, D = sum(tensor.numel() for tensor in tensors.values()), config.d_model
    needed = config.n_layers * (3 * D * D + 2 * D * config.d_ff)
    if count < needed:  # do not let a foreign config exhaust the memory
        raise CheckpointError(
            f"{source} does not fit its config: its layers need at least {needed:,} weights, "
            f"and it holds {count:,}"
        )
    with _default_torch_settings():
        model = LinearTransformer(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    missing, extra = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing or extra:
        raise CheckpointError(
            f"{source} does not fit its config: "
            f"missing {sorted(missing)[:3] or 'none'}, unknown {sorted(extra)[:3] or 'none'}"
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{source}: {name} has shape {[*tensors[name].shape]}, expected {[*shape]}"
            )
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or not tensor.is_floating_point() or tensor.is_meta:
            kind = f"{tensor.layout}, {tensor.dtype}, {tensor.device}".replace("torch.", "")
            raise CheckpointError(f"{source}: {name} is not a dense float tensor ({kind})")
    plain = {name: tensor.float() for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{source}: {name} contains NaN or infinity; train it again")
    model.load_state_dict(plain)
    return model.eval()


def find_checkpoints(folder: Path) -> dict[str, Path]:
    """Return the checkpoints of a folder by name; raise ``CheckpointError`` if there are none."""
    try:
        files = sorted(folder.iterdir())  # unlike glob, raises an error that says why it fails
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no folder {folder}: pass a folder with checkpoints"
        ) from None
    except OSError as error:
        if isinstance(error, NotADirectoryError) and folder.is_file():
            hint = f"pass its folder, {folder.parent}, and the model name {folder.stem!r}"
            raise CheckpointError(f"{folder} is a file: {hint}") from None
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    # Some systems add a hidden file with the name of each file.
    paths = [p for p in files if p.suffix == ".safetensors" and not p.name.startswith(".")]
    found = {path.stem: path for path in paths}
    if not found:
        raise CheckpointError(
            f"no *.safetensors in {folder}: train one with `scanline train mnist --out {folder}`"
        )
    return found


def read_config(path: Path) -> ModelConfig:
    """Read the config of a checkpoint without its weights.

    Raises:
        CheckpointError: The file cannot be read as a checkpoint.
    """
    return _read(path, weights=False)[0]


def load_checkpoints(folder: Path, names: Sequence[str] = ()) -> list[Checkpoint]:
    """Load models of a folder by name, or all of them, the default first.

    The default is the first name given, or else a model with the fewest steps per image. Raises
    ``CheckpointError`` if a name is unknown or a checkpoint cannot be used.
    """
    paths = find_checkpoints(folder)
    for name in names:
        if name not in paths:
            available = ", ".join(paths)
            raise CheckpointError(f"there is no model {name!r} in {folder}; there are: {available}")
        if names.count(name) > 1:
            raise CheckpointError(f"the model {name!r} is given twice: give each name once")
    return [load_checkpoint(paths[name]) for name in names or _default_first(paths)]


def load_by_name(folder: Path | None = None, name: str | None = None) -> Checkpoint:
    """Load one model of a folder (by default the shipped one), or its default model."""
    folder = folder or SHIPPED_WEIGHTS
    names = [name] if name else _default_first(find_checkpoints(folder))[:1]
    return load_checkpoints(folder, names)[0]


def _default_first(paths: dict[str, Path]) -> list[str]:
    """Sort model names by steps per image, then by name, without reading the weights."""
    return sorted(paths, key=lambda name: (read_config(paths[name]).steps, name))
