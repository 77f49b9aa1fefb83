"""Conversion of a network to the config and the weights of the CUDA kernels."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from scanline.kernels.cuda.decode_config import DecodeConfig
from scanline.model.config import TABLE_ENTRIES, VALUES, ModelConfig
from scanline.model.inputs import OUTSIDE, NeighbourhoodInput
from scanline.model.network import LinearTransformer

DevicePrecision = Literal["bf16", "float32"]
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


def decode_config_for(config: ModelConfig, precision: DevicePrecision = "bf16") -> DecodeConfig:
    """Return the kernels' config of a network."""
    c = config
    return DecodeConfig(
        pixels=c.pixels, width=c.width, steps_per_pixel=c.steps_per_pixel,
        channels=c.step_channels, context=c.places, embedding_size=c.embedding_size,
        linear_encoding=c.input == "neighbourhood" and c.encoding == "linear",
        classes=len(c.classes), layers=c.n_layers, heads=c.n_heads, d_model=c.d_model, d_ff=c.d_ff,
        outputs=c.head_outputs, draws=c.step_draws, categorical=c.head == "categorical",
        pre_norm=c.norm == "pre", gelu=c.activation == "gelu",
        short_conv=c.short_conv != "none", first_step=int(c.start == "given"),
        first_value=c.first_value, dtype=DTYPES[precision],
    )  # fmt: skip


def embedding(model: LinearTransformer) -> tuple[Tensor, Tensor, Tensor]:
    """Express the input layer as a sum of table rows.

    A linear map of an intensity becomes a table of 256 rows.

    Returns:
        ``context_index: int32 [steps, context]``: index of each context value among the image's
            values, -1 for outside.
        ``value_table: float32 [context, 257, size]``: embedding of each value, and of outside.
        ``step_table: float32 [steps, D]``: the part that depends on the step only.
    """
    c, size = model.config, model.config.embedding_size
    steps = torch.arange(c.steps)
    step_table = torch.zeros(c.steps, c.d_model)
    if c.positions == "sinusoidal":
        step_table[:, size:] = model.input.get_buffer("code").float().cpu()
    if model.positions is not None:
        device_steps = steps.to(model.positions.row.device)
        step_table += model.positions(device_steps.unsqueeze(0))[0].float().cpu()
    if isinstance(model.input, NeighbourhoodInput):
        layer = model.input
        context_index = _context_index(layer, c)
        table = torch.zeros(layer.places, TABLE_ENTRIES, size)
        if layer.tables is not None:
            table += layer.tables.float().cpu().view(layer.places, TABLE_ENTRIES, size)
        if layer.linear is not None:
            weight, bias = layer.linear.weight.float().cpu(), layer.linear.bias.float().cpu()
            scaled = torch.arange(VALUES) / 127.5 - 1
            inside, outside = weight.t().split(layer.places)
            table[:, :VALUES] += scaled.view(1, -1, 1) * inside.unsqueeze(1)
            table[:, OUTSIDE] += outside
            step_table[:, :size] += bias
        return context_index, table, step_table
    values = model.input.value_embedding.weight.float().cpu()
    table = torch.zeros(1, TABLE_ENTRIES, size)
    table[0, :VALUES] = values
    if model.input.start is not None:  # replaces the embedding and the position code
        start = model.input.start.float().cpu()
        table[0, OUTSIDE] = start[:size]
        step_table[0, size:] = start[size:]
    return (steps - 1).to(torch.int32).unsqueeze(1), table, step_table


def _context_index(layer: NeighbourhoodInput, c: ModelConfig) -> Tensor:
    index = layer.get_buffer("index").cpu()  # [T, 17], T for outside
    values = index.unsqueeze(-1) * c.channels + torch.arange(c.channels)
    values = torch.where(index.unsqueeze(-1) < c.pixels, values, -1).flatten(1)
    context_index = values.repeat_interleave(c.steps_per_pixel, 0)
    if c.steps_per_pixel > 1:  # the earlier channels of the same pixel
        steps = torch.arange(c.steps).unsqueeze(1)
        earlier = torch.arange(c.channels - 1)
        subpixel = steps % c.steps_per_pixel
        own = torch.where(earlier < subpixel, steps - subpixel + earlier, -1)
        context_index = torch.cat([context_index, own], 1)
    return context_index.to(torch.int32)


def load_weights(weights: dict[str, Tensor], model: LinearTransformer) -> None:
    """Copy a network's weights to the tensors that the kernels read."""
    context_index, value_table, step_table = embedding(model)
    named: dict[str, Tensor] = {
        "context_index": context_index, "value_table": value_table, "step_table": step_table,
    }  # fmt: skip
    if model.label_embedding is not None:
        named["label_table"] = model.label_embedding.weight
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
        elif name != "label_table":  # optional
            raise KeyError(f"the network has no {name}")
