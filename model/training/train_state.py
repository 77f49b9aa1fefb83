"""One step of training, deterministic in (seed, step).

Muon (orthogonalised momentum, Jordan et al. 2024) steps the blocks' matrices and AdamW the rest.
What is served is a moving average of the weights.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from scanline.model.training.batches import Batch, make_batch
from scanline.model.training.collectives import GradientAverager
from scanline.model.training.config import TrainingConfig, learning_rate_factor
from scanline.model.training.forward_backward import ForwardBackward
from scanline.model.training.host_tuning import bf16_is_fast, keep_freed_memory
from scanline.model.training.optimizers import make_optimizers, step_optimizers


class TrainState:
    """A network that learns a batch a step, its moving average, and its optimizers.

    One process drives one device; of several (``processes.py``) each takes its share of every
    batch. Raises ``ValueError`` where a batch does not divide among them.
    """

    def __init__(self, model: ModelConfig, config: TrainingConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        if config.batch % self.world_size:
            raise ValueError(f"batch {config.batch} does not divide by {self.world_size} processes")
        torch.manual_seed(config.seed)
        self.model = LinearTransformer(model).to(device)
        self.ema = LinearTransformer(model).to(device).requires_grad_(False)
        self.ema.load_state_dict(self.model.state_dict())
        self.step = 0
        pays = config.precision != "fp32" and bf16_is_fast(device)
        if self.world_size > 1:  # or machines of several kinds would compute apart
            agreed = torch.tensor(float(pays), device=device)
            dist.all_reduce(agreed, dist.ReduceOp.MIN)
            pays = bool(agreed.item())
        self.optimizers = make_optimizers(self.model, config, bf16=pays)
        self.bf16 = pays or config.precision == "bf16"
        self._forward_backward = ForwardBackward(
            self.model, bf16=self.bf16, compiled=config.compile
        )
        # The next step's batch, and which step's it is, of which images and labels.
        self._prefetched: tuple[tuple[int, Tensor, Tensor | None], Batch] | None = None
        self._parameters: list[Tensor] = [*self.model.parameters()]
        self._ema_parameters: list[Tensor] = [*self.ema.parameters()]
        bits = torch.zeros((), device=device)
        self._averager = (
            GradientAverager([*self._parameters, bits]) if self.world_size > 1 else None
        )
        if device.type == "cpu":
            keep_freed_memory()

    def take_step(self, images: Tensor, labels: Tensor | None) -> float:
        """Train on the next batch of ``images: [N, T, C]``, ``labels: [N]``; gives its bits/dim.

        The batch after it is made meanwhile: what is changed in place is seen a step later.
        """
        canvas, label = self._batch(self.step, images, labels)
        bits = self._forward_backward(
            canvas.to(self.device), None if label is None else label.to(self.device)
        )
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._averager:
            self._averager.average([*gradients, bits])
        norm = torch.nn.utils.get_total_norm(gradients)
        # A device is not waited for before all of a step is under way.
        if self.device.type == "cuda" or norm > 1:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, 1.0, norm)
        step_optimizers(self.optimizers, learning_rate_factor(self.step, self.config))
        if self.step + 1 < self.config.steps:
            following = self._batch(self.step + 1, images, labels)  # while a device is at work
            self._prefetched = (self.step + 1, images, labels), following
        value = bits.item()
        if not (math.isfinite(value) and math.isfinite(norm.item())):
            raise FloatingPointError(
                f"the loss is {value} and its gradient's norm {norm.item()} at step {self.step}: "
                "begin again in another folder at a lower rate, --from the weights here if any"
            )
        self.step += 1
        self._update_ema()
        return value

    def _batch(self, step: int, images: Tensor, labels: Tensor | None) -> Batch:
        """Give this process's share of a step's batch, which may have been made ahead."""
        if self._prefetched is not None:
            of, made = self._prefetched
            if of[0] == step and of[1] is images and of[2] is labels:
                return made
        share = self.config.batch // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        return make_batch(step, images, labels, self.config, mine, self.model.config)

    @torch.no_grad()
    def _update_ema(self) -> None:
        # Early on the average follows closely, or it would remember the random start.
        decay = min(self.config.average, self.step / (self.step + 10))
        torch._foreach_lerp_(self._ema_parameters, self._parameters, 1 - decay)

    def any_stop_requested(self, asked: bool) -> bool:
        """Whether any process was asked to stop: all must leave after the same step."""
        if self.world_size == 1:
            return asked
        whether = torch.tensor(float(asked), device=self.device)
        dist.all_reduce(whether, dist.ReduceOp.MAX)
        return bool(whether.item())

    def check_finite(self) -> None:
        """Raise ``FloatingPointError`` where weights are no numbers."""
        if not all(
            bool(one.isfinite().all()) for one in (*self._parameters, *self._ema_parameters)
        ):
            raise FloatingPointError(
                f"the weights are no numbers after step {self.step}, and are not saved: begin "
                "again in another folder at a lower rate, --from the weights here if any"
            )

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Take these weights by their names, before the first step."""
        for network in (self.model, self.ema):
            network.load_state_dict(network.state_dict() | tensors)

    def state_dict(self) -> dict[str, Any]:
        """Give all that ``restore`` needs to go on to the bit."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.ema.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a ``state``; raises as torch does on another network's."""
        self.model.load_state_dict(saved["model"])
        self.ema.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            # What the training_config and this version say, not what the run was saved with.
            for group, mine in zip(state["param_groups"], optimizer.param_groups, strict=True):
                group |= {key: mine[key] for key in ("rate", "fused") if key in mine}
            optimizer.load_state_dict(state)
        self.step = saved["step"]
