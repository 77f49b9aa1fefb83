"""Which optimizer steps what, and how far: Muon the blocks' matrices, AdamW everything else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.muon import Muon

# AdamW moves each weight by about its rate, so what such a map gives moves by that times the sum of
# its inputs: far where they are alike, as the intensities of neighbours are.
_EDGES = ("input.linear.weight", "head.predictor.weight")


def make_optimizers(
    model: LinearTransformer, config: TrainingConfig, *, bf16: bool
) -> list[Optimizer]:
    """Give the optimizers of a run, Muon's arithmetic in bfloat16 if ``bf16``, else float32."""
    matrices: list[Tensor] = []
    others: dict[float, list[Tensor]] = {}  # by rate
    edge_rate = config.learning_rate if config.edge_rate is None else config.edge_rate
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.ndim == 2 and "conv" not in name:
            matrices.append(parameter)
        else:
            rate = edge_rate if name in _EDGES else config.learning_rate
            others.setdefault(rate, []).append(parameter)
    groups = [{"params": parameters, "rate": rate} for rate, parameters in others.items()]
    muon = Muon(
        matrices,
        lr=config.muon_rate,
        weight_decay=config.weight_decay,
        dtype=torch.bfloat16 if bf16 else torch.float32,
    )
    muon.param_groups[0]["rate"] = config.muon_rate
    return [muon, torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=0.0, fused=True)]


def step_optimizers(optimizers: list[Optimizer], factor: float) -> None:
    """Step each at this share of its full rates, and clear the gradients."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        optimizer.step()
        optimizer.zero_grad()
