"""Configs of all option combinations, and a helper that runs their steps."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.layers.base import State
from scanline.model.network import LinearTransformer
from tests.conftest import tiny_config


def variants() -> dict[str, ModelConfig]:
    """Return all valid combinations of interacting options, with the others cycled through.

    The options of the input (input, encoding, order, positions, start, channels, classes) and the
    head are fully crossed. Norm and activation, which affect only the blocks, are cycled through.
    """
    found: dict[str, ModelConfig] = {}
    combined: list[tuple[Any, Any]] = [*itertools.product(("pre", "post"), ("gelu", "relu"))]
    blocks = itertools.cycle(combined)
    for source, order, channels, head, positions, start, classes in itertools.product(
        ("previous", "table", "linear"),
        ("subpixel", "pixel"),
        (1, 3),
        ("categorical", "logistic_mixture"),
        ("learned", "sinusoidal"),
        ("learned", "given"),
        ((), ("cat", "dog")),
    ):
        fields: dict[str, Any] = {"input": "previous"}
        if source != "previous":
            fields = {"input": "neighbourhood", "encoding": source}
        try:
            config = tiny_config(
                order=order, channels=channels, head=head, positions=positions, start=start,
                classes=classes, **fields,
            )  # fmt: skip
        except ValueError:
            continue
        norm, activation = next(blocks)
        name = f"{source}-{order}-{channels}-{head}-{positions}-{start}-{norm}-{activation}"
        name += "-classes" if classes else "-plain"
        found[name] = replace(config, norm=norm, activation=activation)
    return found


VARIANTS = variants()


def covering(size: int) -> dict[str, ModelConfig]:
    """Return a few variants in which all combinations of ``size`` options' values occur."""
    combinations = {
        name: {*itertools.combinations(enumerate(name.split("-")), size)} for name in VARIANTS
    }
    missing = set().union(*combinations.values())
    chosen: dict[str, ModelConfig] = {}
    while missing:
        best = max(combinations, key=lambda name: len(missing & combinations[name]))
        missing -= combinations[best]
        chosen[best] = VARIANTS[best]
    return chosen


TRIPLES, FEW = covering(3), covering(2)
_VARIANT_PARAMS = [
    pytest.param(config, marks=() if name in TRIPLES else pytest.mark.broad, id=name)
    for name, config in VARIANTS.items()
]
every_variant = pytest.mark.parametrize("config", _VARIANT_PARAMS)
few_variants = pytest.mark.parametrize("config", FEW.values(), ids=FEW.keys())

# One config for each kind of layer, supported by all backends or not.
LAYERS = {
    f"{option}-{value}": tiny_config(
        channels=3, head="logistic_mixture", classes=("cat", "dog"), **{option: value}
    )
    for option in ("attention", "feature_map", "short_conv")
    for value in get_args(get_type_hints(ModelConfig)[option])
    if value != getattr(ModelConfig, option)
}
SEEN = {name: config for name, config in (FEW | LAYERS).items() if config.has_state}
every_layer = pytest.mark.parametrize("config", SEEN.values(), ids=SEEN.keys())
every_variant_and_layer = pytest.mark.parametrize(
    "config",
    _VARIANT_PARAMS
    + [pytest.param(config, id=name) for name, config in LAYERS.items() if config.has_state],
)


def random_labels(config: ModelConfig, rows: int) -> Tensor | None:
    """Return a class or "no label" for each row in turn, or None without classes."""
    if not config.classes:
        return None
    return torch.arange(rows) % (len(config.classes) + 1) - 1


def steps_from(
    network: LinearTransformer,
    canvas: Tensor,
    state: list[State],
    start: int,
    labels: Tensor | None,
    end: int | None = None,
) -> tuple[Tensor, list[State]]:
    """Run ``step`` from step ``start`` to ``end``, exclusive, or to the last one."""
    given = int(network.config.start == "given")
    rows = [
        network.step(canvas, torch.full((canvas.shape[0],), step), state, labels)
        for step in range(max(start, given), network.config.steps if end is None else end)
    ]
    if not rows:
        return torch.empty(canvas.shape[0], 0, network.config.head_outputs), state
    return torch.stack(rows, 1), state


def tensors(states: list[State]) -> list[Tensor]:
    return [tensor for state in states for tensor in state.values()]
