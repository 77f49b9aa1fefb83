"""Checkpoints: safetensors files that carry the config and how the weights came to be."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings
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
SHIPPED_WEIGHTS = Path(__file__).resolve().parent.parent / "weights"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why and what to do."""


class SamplingDefaults(NamedTuple):
    """How a model's images look best: ``guidance`` with a label, and ``top_p`` of any."""

    guidance: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True)
class Checkpoint:
    """A network ready for use (``eval``, float32), and the facts of its training."""

    name: str
    model: LinearTransformer
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def defaults(self) -> SamplingDefaults:
        """How its images are drawn where nobody says otherwise; plainly where its facts do not."""
        return SamplingDefaults(**self.facts.get("defaults", {}))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its config and weights, in hexadecimal: whose network it is, however named."""
        digest = hashlib.sha256(json.dumps(self.model.config.to_dict(), sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().float().numpy().tobytes())
        return digest.hexdigest()

    @property
    def native_precision(self) -> Precision | None:
        """What the ``native`` backend draws it in; None where its facts leave that to the CPU."""
        known: Precision | None = self.facts.get("native_precision", {}).get("precision")
        return known


def save_checkpoint(path: Path, model: LinearTransformer, facts: dict[str, Any]) -> None:
    """Write a model's weights, as they are, with its config and facts, atomically."""
    metadata = {
        "format": FORMAT,
        "config": json.dumps(model.config.to_dict()),
        "facts": json.dumps(facts),
    }
    write_atomically(path, safetensors.torch.save(model.state_dict(), metadata))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raises ``CheckpointError`` on one that is missing, damaged or foreign."""
    config, facts, tensors = _read(path)
    return Checkpoint(path.stem, build_network(config, tensors, str(path)), facts)


def load_facts(path: Path) -> dict[str, Any]:
    """Read a checkpoint's facts and leave its weights; raises as ``load_checkpoint``."""
    return _read(path, weights=False)[1]


def _read(
    path: Path, weights: bool = True
) -> tuple[ModelConfig, dict[str, Any], dict[str, Tensor]]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = file.keys() if weights else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:  # or one that may not be read, which safetensors calls so too
        try:
            path.stat()
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint at {path}") from None
        except OSError:
            pass  # or whose folder may not be entered
        raise CheckpointError(f"{path} cannot be read: let this user read it") from None
    except (safetensors.SafetensorError, OSError) as error:
        if path.is_dir():
            raise CheckpointError(
                f"{path} is a folder: name the file in it, as {path / path.stem}.safetensors"
            ) from None
        raise CheckpointError(
            f"{path} is damaged or no safetensors file ({error}); fetch or train it again, and "
            "turn a PyTorch file into one with `scanline import`"
        ) from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is a safetensors file, but not one of Scanline's (its format is "
            f"{metadata.get('format')}, not {FORMAT}); "
            "train one with `scanline train`, or import one with `scanline import`"
        )
    try:
        config = ModelConfig.from_dict(json.loads(metadata["config"]))
        facts = json.loads(metadata.get("facts", "{}"))
        if not isinstance(facts, dict):
            raise ValueError(f"its facts are no dictionary: {facts!r}")
        _check_facts(facts)
    except (
        AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise CheckpointError(f"{path} has a config that cannot be read: {error}") from None
    return config, facts, tensors


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise one of the errors that ``load_checkpoint`` reports unless what is read of them fits."""
    defaults = SamplingDefaults(**facts.get("defaults", {}))
    if not (0 <= defaults.guidance <= MAX_GUIDANCE and 0 < defaults.top_p <= 1):
        raise ValueError(f"its defaults are out of range: {defaults._asdict()!r}")
    precision = facts.get("native_precision", {}).get("precision")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"its native_precision is unknown: {precision!r}")
    measured = [facts.get("test"), facts.get("test_with_label"), *(facts.get("validation") or ())]
    for figure in measured:
        if figure is not None and not _is_number(figure["bits_per_dim"]):
            raise TypeError(f"its figures are no numbers: {figure!r}")
    before = facts.get("started_from") or {}
    named = [(facts, "images_seen"), (facts, "held_out"), (before, "images_seen")]
    for run, name in [*named, *((one, "held_out") for one in before.get("runs", []))]:
        if not isinstance(number := run.get(name) or 0, int) or number < 0:
            raise TypeError(f"its {name} is no count: {number!r}")


def _is_number(value: Any) -> bool:
    """Whether it is a finite number; raises ``OverflowError`` on one too large for a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@contextlib.contextmanager
def _default_torch_settings() -> Iterator[None]:
    """Make what is to be filled as if nothing were set of torch, and leave its chance as it was."""
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
    """Make a network of tensors with the right names, shapes and finite values, or raise."""
    held, D = sum(tensor.numel() for tensor in tensors.values()), config.d_model
    least = config.n_layers * (3 * D * D + 2 * D * config.d_ff)
    if held < least:  # a foreign config's sizes are not to fill the memory
        raise CheckpointError(
            f"{source} does not fit its config: its layers alone need {least:,} weights or more, "
            f"and it holds {held:,}"
        )
    with _default_torch_settings():
        model = LinearTransformer(config)
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    missing, extra = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or extra:
        raise CheckpointError(
            f"{source} does not fit its config: "
            f"missing {sorted(missing)[:3] or 'nothing'}, unknown {sorted(extra)[:3] or 'nothing'}"
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"{source}: {name} has shape {[*tensors[name].shape]}, its config says {[*shape]}"
            )
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or not tensor.is_floating_point() or tensor.is_meta:
            kind = f"{tensor.layout}, {tensor.dtype}, {tensor.device}".replace("torch.", "")
            raise CheckpointError(f"{source}: {name} holds no plain floats ({kind})")
    plain = {name: tensor.float() for name, tensor in tensors.items()}
    for name, tensor in plain.items():
        if not tensor.isfinite().all():
            raise CheckpointError(f"{source}: {name} holds NaN or infinity; train it again")
    model.load_state_dict(plain)
    return model.eval()


def find_checkpoints(folder: Path) -> dict[str, Path]:
    """Give a folder's checkpoints by name; raises ``CheckpointError`` where there are none."""
    try:
        files = sorted(folder.iterdir())  # which, unlike a glob, says why there are none
    except FileNotFoundError:
        raise CheckpointError(f"there is no folder {folder}: name one with checkpoints") from None
    except OSError as error:
        if isinstance(error, NotADirectoryError) and folder.is_file():
            where = f"name its folder, {folder.parent}, and the model {folder.stem!r}"
            raise CheckpointError(f"{folder} is a file: {where}") from None
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    # What begins with a dot some systems put beside a file, of its name.
    paths = [p for p in files if p.suffix == ".safetensors" and not p.name.startswith(".")]
    found = {path.stem: path for path in paths}
    if not found:
        raise CheckpointError(
            f"no *.safetensors in {folder}: train one with `scanline train mnist --out {folder}`"
        )
    return found


def read_config(path: Path) -> ModelConfig:
    """Read of which network a checkpoint is, without its weights; raises ``CheckpointError``."""
    return _read(path, weights=False)[0]


def load_checkpoints(folder: Path, names: Sequence[str] = ()) -> list[Checkpoint]:
    """Read these models of a folder, or all of them, the default first.

    The default is the first one named; of all, one of the fewest steps an image. Raises
    ``CheckpointError`` on a name that is not there, or a checkpoint that cannot be used.
    """
    paths = find_checkpoints(folder)
    for name in names:
        if name not in paths:
            there = ", ".join(paths)
            raise CheckpointError(f"there is no model {name!r} in {folder}; there are: {there}")
        if names.count(name) > 1:
            raise CheckpointError(f"the model {name!r} is named twice: name each once")
    return [load_checkpoint(paths[name]) for name in names or _default_first(paths)]


def load_by_name(folder: Path | None = None, name: str | None = None) -> Checkpoint:
    """Read one model of a folder (the shipped ones'), or its default; raises as above."""
    folder = folder or SHIPPED_WEIGHTS
    names = [name] if name else _default_first(find_checkpoints(folder))[:1]
    return load_checkpoints(folder, names)[0]


def _default_first(paths: dict[str, Path]) -> list[str]:
    """Order models by their steps an image, without reading their weights."""
    return sorted(paths, key=lambda name: read_config(paths[name]).steps)


def load_torch_file(path: Path, device: torch.device | str = "cpu") -> Any:
    """Read a PyTorch file without running code from it; raises ``CheckpointError`` if it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd pickles: what matters is what comes out
            return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except Exception as error:  # a damaged pickle can raise anything
        # The first sentence: torch goes on with how to run what the file says.
        reason = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise CheckpointError(f"{path} is no PyTorch file of plain tensors: {reason}") from None
