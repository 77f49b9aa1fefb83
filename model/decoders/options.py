"""Options of a config that the compiled backends support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from scanline.model.config import ModelConfig

# Fields for which every backend accepts all valid values.
_SIZE_FIELDS = {
    "height", "width", "channels", "first_value", "classes", "n_layers", "n_heads", "d_model",
    "d_ff",
}  # fmt: skip
# Values of each option that both compiled backends (native and triton) support. A backend that
# supports more values of an option lists all of them: ``COMPILED_OPTIONS | {option: values}``.
COMPILED_OPTIONS = {
    "input": ("previous", "neighbourhood"),
    "encoding": ("table", "linear"),
    "order": ("subpixel", "pixel"),
    "head": ("logistic_mixture", "categorical"),
    "attention": ("linear",),
    "feature_map": ("elu",),
    "short_conv": ("none", "2x3"),
    "norm": ("pre", "post"),
    "activation": ("gelu", "relu"),
    "positions": ("learned", "sinusoidal"),
    "start": ("learned", "given"),
}


def unsupported_option(config: ModelConfig, options: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the first option of a config that is not among a backend's ``options``, or None.

    An option that is not listed must have its default. So a new option is refused until a backend
    implements it, never ignored.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        values = options.get(field.name, (field.default,))
        if field.name not in _SIZE_FIELDS and value not in values:
            return f"{field.name} {value!r} (supported: {', '.join(map(str, values))})"
    return None
