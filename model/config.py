"""Network configuration: frozen, validated, and stored in every checkpoint.

Imports no torch, so that the command line starts fast (``tests/model/test_api.py``).
"""

from __future__ import annotations

import dataclasses
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from scanline.kernels.constants import MIXTURES, AttentionKind, FeatureMap

VALUES = 256  # intensities per channel
NO_LABEL = -1
MAX_GUIDANCE = 10.0
TABLE_ENTRIES = VALUES + 1  # embeddings of one neighbour: each intensity, and "outside"

# The 17 causal neighbours (row, column) of a pixel: 3 to its left, 7 in each of two rows above.
NEIGHBOURS: tuple[tuple[int, int], ...] = (
    *((0, column) for column in (-3, -2, -1)),
    *((row, column) for row in (-1, -2) for column in range(-3, 4)),
)

# Far beyond any use. They keep a foreign file from exhausting the memory before it is checked.
_MAX_SIZES = {
    "height": 1024, "width": 1024, "n_layers": 256, "n_heads": 1024, "d_model": 8192, "d_ff": 65536,
    "lsh_chunk": 4096,
}  # fmt: skip

# Longer names are not normalised, because that takes quadratic time in the number of accents.
_MAX_NORMALIZED_LENGTH = 1000

DIGITS = tuple("0123456789")
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def _normalize_name(name: str) -> str:
    """Return a class name in Unicode normal form C, without surrounding spaces."""
    name = name.strip()
    return unicodedata.normalize("NFC", name) if len(name) <= _MAX_NORMALIZED_LENGTH else name


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a network; raises ``ValueError`` if it is inconsistent.

    Attributes:
        height: In pixels, like ``width``.
        channels: Values per pixel: 1 (grey) or 3 (RGB).
        input: What a step sees: the ``previous`` value, or the ``neighbourhood`` of 17 causal
            pixels.
        encoding: How neighbours enter: by an embedding ``table``, or by a ``linear`` map of their
            intensities.
        order: Whether a step decides all channels of a ``pixel``, or one ``subpixel``.
        head: ``categorical`` (256 logits, for one value per step) or ``logistic_mixture`` (ten
            discretised logistics).
        attention: ``lsh-N`` has N rounds of hashing. It has no state, so it draws by recomputation.
        feature_map: The feature map of linear attention.
        lsh_chunk: Positions per chunk of LSH attention.
        lsh_combine: How LSH attention combines its rounds (``kernels/attention/lsh.py``).
        short_conv: ``2x3`` mixes five neighbouring pixels before each half of a layer, after its
            norm.
        norm: Whether the norm comes before (``pre``) or after (``post``) each half of a layer.
        start: ``given`` is for checkpoints of the paper's authors, which do not model the first
            value of the image. It is ``first_value`` unless the caller gives another.
        classes: The names of the classes; empty for an unconditional model.
        d_model: Features of a step; ``d_ff`` are those of the feed-forward layer.
    """

    height: int
    width: int
    channels: int = 1
    input: Literal["previous", "neighbourhood"] = "neighbourhood"
    encoding: Literal["table", "linear"] = "table"
    order: Literal["subpixel", "pixel"] = "pixel"
    head: Literal["logistic_mixture", "categorical"] = "categorical"
    attention: AttentionKind = "linear"
    feature_map: FeatureMap = "elu"
    lsh_chunk: int = 32
    lsh_combine: Literal["union", "mean"] = "union"
    short_conv: Literal["none", "2x3"] = "none"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["gelu", "relu"] = "gelu"
    positions: Literal["learned", "sinusoidal"] = "learned"
    start: Literal["learned", "given"] = "learned"
    first_value: int = 0
    classes: tuple[str, ...] = ()
    n_layers: int = 4
    n_heads: int = 4
    d_model: int = 128
    d_ff: int = 512

    def __post_init__(self) -> None:
        for name, most in _MAX_SIZES.items():
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 1 to {most}, not {getattr(self, name)}")
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (RGB), not {self.channels}")
        hints = get_type_hints(type(self))
        for name, value in dataclasses.asdict(self).items():
            allowed = get_args(hints[name])
            if isinstance(value, str) and value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}")
        if self.positions == "sinusoidal" and self.d_model % 4:
            raise ValueError(
                f"sinusoidal positions need d_model to be a multiple of 4: {self.d_model}"
            )
        if self.input == "previous" and self.order == "pixel" and self.channels > 1:
            raise ValueError(
                "input 'previous' sees one value per step: use order 'subpixel', or input "
                "'neighbourhood' to draw a whole RGB pixel per step"
            )
        if self.head == "categorical" and self.step_channels > 1:
            raise ValueError(
                "head 'categorical' decides one value per step: use head 'logistic_mixture' to "
                "draw a whole RGB pixel per step, or order 'subpixel'"
            )
        if self.positions == "learned" and self.steps_per_pixel > 1:
            raise ValueError(
                "learned positions need one step per pixel: use positions 'sinusoidal', or order "
                "'pixel'"
            )
        if self.start == "given" and self.input != "previous":
            raise ValueError("start 'given' needs input 'previous' (the paper's checkpoints)")
        if self.start == "given" and self.height * self.width * self.channels == 1:
            raise ValueError("start 'given' leaves nothing to model in images of one value")
        if self.short_conv != "none" and (self.steps_per_pixel > 1 or self.norm != "pre"):
            raise ValueError(
                "short_conv needs one step per pixel and norm 'pre': use order 'pixel' and norm "
                "'pre', or short_conv 'none'"
            )
        if self.short_conv != "none" and self.start == "given":
            raise ValueError("short_conv needs start 'learned'")
        if self.short_conv != "none" and self.width < 2:
            raise ValueError("short_conv needs images at least 2 pixels wide")
        if not 0 <= self.first_value < VALUES:
            raise ValueError(f"first_value must be 0 to 255, not {self.first_value}")
        if self.attention != "linear" and self.feature_map != "elu":
            raise ValueError(
                f"feature_map needs linear attention; leave it out with {self.attention!r}"
            )
        if not self.attention.startswith("lsh") and self._lsh_changes:
            raise ValueError(
                f"{self._lsh_changes[0]} needs LSH attention; leave it out with {self.attention!r}"
            )
        if len(set(self.classes)) != len(self.classes) or "" in self.classes:
            raise ValueError(f"class names must be different and not empty: {self.classes}")
        for name in self.classes:
            try:
                name.encode()
            except UnicodeEncodeError:  # from a folder name in another encoding
                raise ValueError(
                    f"the class name {name!r} is not valid UTF-8: rename its folder"
                ) from None

    @property
    def has_state(self) -> bool:
        """True if the network has a recurrent state; otherwise it draws by recomputation."""
        return not self.attention.startswith("lsh")

    @property
    def _lsh_changes(self) -> list[str]:
        """The names of the options of LSH attention that differ from their defaults."""
        return [
            n for n in ("lsh_chunk", "lsh_combine") if getattr(self, n) != getattr(type(self), n)
        ]

    @property
    def pixels(self) -> int:
        """T, pixels per image: height × width."""
        return self.height * self.width

    @property
    def step_channels(self) -> int:
        """Values that one step decides."""
        return self.channels if self.order == "pixel" else 1

    @property
    def steps_per_pixel(self) -> int:
        """Steps per pixel."""
        return self.channels // self.step_channels

    @property
    def steps(self) -> int:
        """Steps per image."""
        return self.pixels * self.steps_per_pixel

    @property
    def values(self) -> int:
        """Values per image, in raster order with the channels innermost."""
        return self.pixels * self.channels

    @property
    def dims(self) -> int:
        """Values that the network models: the dimensions in bits/dim."""
        return self.values - (self.start == "given")

    @property
    def places(self) -> int:
        """Values that the input of a step reads, each at a place of its own.

        These are the previous value; or all channels of the neighbours and, if a step decides one
        value of an RGB pixel, the pixel's red and green.
        """
        if self.input == "previous":
            return 1
        return len(NEIGHBOURS) * self.channels + self.steps_per_pixel - 1

    @property
    def embedding_size(self) -> int:
        """Features of the values that a step reads; a sinusoidal position code has the others."""
        return self.d_model // 2 if self.positions == "sinusoidal" else self.d_model

    @property
    def step_draws(self) -> int:
        """Uniforms per step: one per value, and one to choose a mixture component."""
        return self.step_channels + (self.head == "logistic_mixture")

    @property
    def draws(self) -> int:
        """Uniforms per pixel."""
        return self.step_draws * self.steps_per_pixel

    @property
    def head_size(self) -> int:
        """K = V, features per attention head."""
        return self.d_model // self.n_heads

    @property
    def head_outputs(self) -> int:
        """Outputs of the head per step.

        Categorical: 256 logits. Mixture, per component: a weight, a mean and a log-scale per
        channel, and a coefficient for each pair of an earlier and a later channel.
        """
        if self.head == "categorical":
            return VALUES
        c = self.step_channels
        return MIXTURES * (1 + 2 * c + c * (c - 1) // 2)

    def class_index(self, label: int | str | None) -> int:
        """Return the index of a class given by name or number; -1 for None.

        A name in other case or spacing is accepted if it is unambiguous. Raises ``ValueError`` if
        there is no such class.
        """
        if label is None:
            return NO_LABEL
        if not self.classes:
            raise ValueError("this model has no classes; leave label out")
        given = label
        # If a class is named by a number, a numeric string is a name and not an index.
        numbers = any(one.strip().isdigit() for one in self.classes)
        if isinstance(label, str):
            name = label.strip()
            for normalize in (
                str,
                str.strip,
                _normalize_name,
                lambda one: _normalize_name(one).lower(),
            ):
                names = [normalize(one) for one in self.classes]
                if names.count(normalize(label)) == 1:
                    return names.index(normalize(label))
            is_index = name.isascii() and name.isdigit() and len(name) < 10 and not numbers
            label = int(name) if is_index else -1
        elif isinstance(label, bool) or not hasattr(label, "__index__"):
            raise ValueError(f"label must be the name or number of a class, not {label!r}")
        if not 0 <= label < len(self.classes):
            indices = "" if numbers else f", or 0 to {len(self.classes) - 1}"
            available = f"there are {', '.join(self.classes)}{indices}"
            raise ValueError(f"there is no class {given!r}; {available}")
        return label

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-compatible values.

        The options of LSH attention are left out at their defaults. So checkpoints without them
        keep their digests, and earlier versions can read them.
        """
        left_out = {"lsh_chunk", "lsh_combine"} - {*self._lsh_changes}
        fields = dataclasses.asdict(self) | {"classes": list(self.classes)}
        return {name: value for name, value in fields.items() if name not in left_out}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ModelConfig:
        """Create a config from ``to_dict``'s output; raise ``ValueError`` on invalid fields."""
        if not isinstance(fields, dict):
            raise ValueError(f"a config must be a dictionary of fields, not {fields!r}")
        known = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := set(fields) - set(known):
            raise ValueError(f"unknown config fields: {', '.join(sorted(unknown))}")
        hints = get_type_hints(cls)
        for name, value in fields.items():
            wants_int = hints[name] is int
            if wants_int and (not isinstance(value, int) or isinstance(value, bool)):
                raise ValueError(f"{name} must be an integer, not {value!r}")
            if not wants_int and name != "classes" and not isinstance(value, str):
                raise ValueError(f"{name} must be a string, not {value!r}")
        classes = fields.get("classes", ())
        if not isinstance(classes, list | tuple) or not all(isinstance(c, str) for c in classes):
            raise ValueError(f"classes must be a list of names, not {classes!r}")
        try:
            return cls(**fields | {"classes": tuple(classes)})
        except TypeError as error:
            raise ValueError(f"incomplete config: {error}") from None


_PAPER: dict[str, Any] = {
    "input": "previous", "order": "subpixel", "head": "logistic_mixture", "norm": "post",
    "activation": "relu", "positions": "sinusoidal", "n_heads": 8, "d_model": 256, "d_ff": 1024,
}  # fmt: skip

PRESETS: dict[str, ModelConfig] = {
    "mnist": ModelConfig(height=28, width=28, short_conv="2x3", classes=DIGITS),
    "cifar10": ModelConfig(
        height=32, width=32, channels=3, encoding="linear", head="logistic_mixture",
        short_conv="2x3", classes=CIFAR10_CLASSES, n_layers=8,
    ),
    "mnist-paper": ModelConfig(height=28, width=28, n_layers=8, **_PAPER),
    "cifar10-paper": ModelConfig(height=32, width=32, channels=3, n_layers=16, **_PAPER),
}  # fmt: skip
# Data set that each preset is trained on: a key of ``PUBLISHED`` (model/data/catalog.py).
PRESET_DATASETS = {
    "mnist": "mnist", "cifar10": "cifar10", "mnist-paper": "mnist", "cifar10-paper": "cifar10",
}  # fmt: skip
