"""A network as the Triton kernels want it: its sizes, and its weights where they read them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scanline.kernels.cuda.decode_config import DELAY, DecodeConfig
from scanline.model.config import NEIGHBOURS, TABLE_ENTRIES, VALUES, ModelConfig
from scanline.model.inputs import OUTSIDE, NeighbourhoodInput, sinusoidal_code
from scanline.model.network import LinearTransformer

DevicePrecision = Literal["bf16", "float32"]
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


def decode_config_for(
    config: ModelConfig,
    precision: DevicePrecision = "bf16",
    delay: int = DELAY,
) -> DecodeConfig:
    """Describe a network to the kernels."""
    c = config
    halves = 2 if c.positions == "sinusoidal" else 1
    places = 1 if c.input == "previous" else len(NEIGHBOURS) * c.channels + c.steps_per_pixel - 1
    return DecodeConfig(
        pixels=c.pixels, width=c.width, parts=c.steps_per_pixel, channels=c.step_channels,
        places=places, code=c.d_model // halves,
        linear=c.input == "neighbourhood" and "linear" in c.encoding, classes=len(c.classes),
        layers=c.n_layers, heads=c.n_heads, d_model=c.d_model, d_ff=c.d_ff,
        outputs=c.head_outputs, draws=c.step_draws, categorical=c.head == "categorical",
        pre_norm=c.norm == "pre", gelu=c.activation == "gelu",
        short_conv=c.short_conv != "none", first=int(c.start == "given"),
        first_value=c.first_value, dtype=DTYPES[precision], delay=delay,
    )  # fmt: skip


def embedding(model: LinearTransformer) -> tuple[Tensor, Tensor, Tensor]:
    """Write the input layer as a sum of table rows, whatever its kind.

    Returns ``sources: int32 [steps, places]``, where in an image's values each place looks, -1 for
    outside; ``table: float32 [places, 257, size]``, its row for each value and for outside (a
    linear map of an intensity is a table of 256 values too); and ``code: float32 [steps, D]``, all
    that depends on the step alone.
    """
    c, D = model.config, model.config.d_model
    steps = torch.arange(c.steps)
    code = torch.zeros(c.steps, D)
    if model.positions is not None:
        here = steps.to(model.positions.row.device)
        code += model.positions(here.unsqueeze(0))[0].float().cpu()
    if isinstance(model.input, NeighbourhoodInput):
        layer = model.input
        sources = _sources(layer, c)
        size = D // 2 if c.positions == "sinusoidal" else D
        table = torch.zeros(layer.places, TABLE_ENTRIES, size)
        if layer.tables is not None:
            table += layer.tables.float().cpu().view(layer.places, TABLE_ENTRIES, size)
        if layer.linear is not None:
            weight, bias = layer.linear.weight.float().cpu(), layer.linear.bias.float().cpu()
            scaled = torch.arange(VALUES) / 127.5 - 1
            inside, outside = weight.t().split(layer.places)
            table[:, :VALUES] += scaled.view(1, -1, 1) * inside.unsqueeze(1)
            table[:, OUTSIDE] += outside
            code[:, :size] += bias
        if c.positions == "sinusoidal":
            code[:, size:] += sinusoidal_code(steps, size)
        return sources, table, code
    values = model.input.value_embedding.weight.float().cpu()
    size = values.shape[1]
    table = torch.zeros(1, TABLE_ENTRIES, size)
    table[0, :VALUES] = values
    if c.positions == "sinusoidal":
        code[:, size:] += sinusoidal_code(steps - 1, size)  # that of the value embedded
    if model.input.start is not None:  # which stands in for embedding and code
        start = model.input.start.float().cpu()
        table[0, OUTSIDE] = start[:size]
        if c.positions == "sinusoidal":
            code[0, size:] = start[size:]
    return (steps - 1).to(torch.int32).unsqueeze(1), table, code


def _sources(layer: NeighbourhoodInput, c: ModelConfig) -> Tensor:
    index = layer.get_buffer("index").cpu()  # [T, 17], T for outside
    places = index.unsqueeze(-1) * c.channels + torch.arange(c.channels)
    places = torch.where(index.unsqueeze(-1) < c.pixels, places, -1).flatten(1)
    sources = places.repeat_interleave(c.steps_per_pixel, 0)
    if c.steps_per_pixel > 1:  # the channels of the pixel itself that are decided before
        steps = torch.arange(c.steps).unsqueeze(1)
        earlier = torch.arange(c.channels - 1)
        part = steps % c.steps_per_pixel
        own = torch.where(earlier < part, steps - part + earlier, -1)
        sources = torch.cat([sources, own], 1)
    return sources.to(torch.int32)


def load_weights(weights: dict[str, Tensor], model: LinearTransformer) -> None:
    """Copy a network's weights to where the kernels read them."""
    sources, table, code = embedding(model)
    named: dict[str, Tensor] = {"sources": sources, "table": table, "code": code}
    if model.label_embedding is not None:
        named["label"] = model.label_embedding.weight
    if model.head.tables is not None:
        named["tables"] = model.head.tables
    named |= {"norm.weight": model.norm.weight, "norm.bias": model.norm.bias}
    named |= {f"head.{kind}": x for kind, x in model.head.predictor.named_parameters()}
    for layer, block in enumerate(model.blocks):
        parts = dict(block.named_parameters())
        for kind in ("weight", "bias"):
            named[f"{layer}.qkv.{kind}"] = torch.cat(
                [
                    parts.pop(f"{name}.{kind}")
                    for name in ("attention.query", "attention.key", "attention.value")
                ]
            )
        named |= {f"{layer}.{name.removeprefix('attention.')}": x for name, x in parts.items()}
    for name, weight in weights.items():
        if name in named:
            weight.copy_(named[name])
        elif name not in ("label", "tables"):  # which not every network has
            raise KeyError(f"the network has no {name}")
