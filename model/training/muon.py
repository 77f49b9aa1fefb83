"""Muon: momentum, orthogonalised (Jordan et al. 2024), for the matrices of a network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from scanline.model.training.collectives import ShardedMap

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic, steepest at zero
_ITERATIONS = 5


def orthogonalise(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring the singular values of ``[n, rows, columns]`` near 1 by Newton-Schulz iterations.

    Arithmetic is in ``dtype``, and so is what is returned.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7).view(-1, 1, 1)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(Optimizer):
    """Nesterov momentum, orthogonalised; all matrices of one shape go through it together.

    ``dtype`` is that of the orthogonalisation: bfloat16 is enough where the machine multiplies it,
    float32 is many times faster where it is emulated. A tall matrix takes steps longer by the root
    of its aspect ratio. Processes that train together orthogonalise a share of the matrices each.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        lr: float,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, defaults)
        self._orthogonalise = partial(orthogonalise, dtype=dtype)
        self._sharded_map = ShardedMap(params)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes[parameter.shape].append(parameter)
            batches = [self._ahead(parameters, group["momentum"]) for parameters in shapes.values()]
            steps = self._sharded_map.run(batches, self._orthogonalise)
            for (shape, parameters), step in zip(shapes.items(), steps, strict=True):
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(parameters, step.unbind(), alpha=-rate)

    def _ahead(self, parameters: list[Tensor], momentum: float) -> Tensor:
        gradients = [p.grad for p in parameters if p.grad is not None]
        moments = [self._moment(p) for p in parameters]
        torch._foreach_lerp_(moments, gradients, 1 - momentum)
        return torch.stack(torch._foreach_lerp(gradients, moments, momentum))

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        moment: Tensor = state["momentum_buffer"]
        return moment
