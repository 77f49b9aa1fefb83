"""Muon optimizer: orthogonalised momentum for matrices (Jordan et al. 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from scanline.model.training.collectives import sharded_map

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # quintic with the steepest slope at zero
_ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Move the singular values of ``[n, rows, columns]`` close to 1 by Newton-Schulz iterations."""
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7).view(-1, 1, 1)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(Optimizer):
    """Optimizer that steps along the orthogonalised Nesterov momentum of each matrix.

    Matrices of one shape are orthogonalised as one batch, and data-parallel processes divide each
    batch among them. The step of a tall matrix is longer by the square root of its aspect ratio.

    Args:
        params: Matrices to optimize.
        lr: Learning rate.
        weight_decay: Decoupled weight decay per unit of learning rate.
        momentum: Decay of the momentum buffer.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters from their gradients."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            batches = [self._nesterov_momentum(p, group["momentum"]) for p in shapes.values()]
            steps = sharded_map(batches, orthogonalise)
            for (shape, parameters), step in zip(shapes.items(), steps, strict=True):
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, step.unbind(), alpha=-rate)

    def _nesterov_momentum(self, parameters: list[Tensor], momentum: float) -> Tensor:
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = [self._momentum_buffer(p) for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return torch.stack(torch._foreach_lerp(gradients, buffers, momentum))

    def _momentum_buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer
