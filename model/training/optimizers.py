"""Optimizers of a run: Muon for the matrices of the blocks, AdamW for all other parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from scanline.model.network import LinearTransformer
from scanline.model.training.config import TrainingConfig
from scanline.model.training.muon import Muon

# AdamW moves every weight by about the learning rate, so the output of these maps moves by the rate
# times the sum of their inputs. That is far if the inputs are alike, as neighbouring pixels are.
_IO_MAPS = ("input.linear.weight", "head.predictor.weight")


def make_optimizers(model: LinearTransformer, config: TrainingConfig) -> list[Optimizer]:
    """Create Muon and AdamW for a network.

    Args:
        model: The network to train.
        config: Learning rates and weight decay. The entry ``"rate"`` of each parameter group holds
            its full learning rate.
    """
    matrices: list[Tensor] = []
    others: dict[float, list[Tensor]] = {}  # by rate
    edge_rate = config.learning_rate if config.edge_rate is None else config.edge_rate
    for name, parameter in model.named_parameters():
        if name.startswith("blocks.") and parameter.ndim == 2 and "conv" not in name:
            matrices.append(parameter)
        else:
            rate = edge_rate if name in _IO_MAPS else config.learning_rate
            others.setdefault(rate, []).append(parameter)
    groups = [{"params": parameters, "rate": rate} for rate, parameters in others.items()]
    muon = Muon(matrices, lr=config.muon_rate, weight_decay=config.weight_decay)
    muon.param_groups[0]["rate"] = config.muon_rate
    return [muon, torch.optim.AdamW(groups, betas=(0.9, 0.99), weight_decay=0.0, fused=True)]


def step_optimizers(optimizers: list[Optimizer], factor: float) -> None:
    """Step all optimizers at ``factor`` times their full rates, and clear the gradients."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * factor
        optimizer.step()
        optimizer.zero_grad()
