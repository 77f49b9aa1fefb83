"""State of a training run and its training step, deterministic in (seed, step)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.layers.lsh import seed_hash_functions
from scanline.model.network import LinearTransformer
from scanline.model.training.batches import Batch, make_batch
from scanline.model.training.collectives import GradientAverager
from scanline.model.training.config import TrainingConfig, learning_rate_factor
from scanline.model.training.forward_backward import ForwardBackward
from scanline.model.training.host_tuning import bf16_is_fast, keep_freed_memory
from scanline.model.training.optimizers import make_optimizers, step_optimizers
from scanline.model.training.orientation import OrientedTransformer

# Ends the messages of a diverged run.
_RETRY_HINT = (
    "train again in another folder at a lower learning rate, with --from and the weights here if "
    "there are any"
)


class TrainState:
    """The network in training, the moving average of its weights (EMA), and its optimizers.

    The EMA is validated and served. With several data-parallel processes
    (``distributed.py``) each has its own TrainState and takes its share of every batch.

    Args:
        model: Network to train.
        config: Training settings.
        device: Device to train on.

    Raises:
        ValueError: If the batch cannot be divided among the processes.
    """

    def __init__(self, model: ModelConfig, config: TrainingConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1
        if config.batch % self.world_size:
            raise ValueError(
                f"a batch of {config.batch} images cannot be divided among {self.world_size} "
                "processes"
            )
        torch.manual_seed(config.seed)
        network = OrientedTransformer if config.dist_aug else LinearTransformer
        self.model = network(model).to(device)
        # Without vectors for orientations, because it is used for upright images only.
        self.ema = LinearTransformer(model).to(device).requires_grad_(False)
        weights = self.model.state_dict()
        self.ema.load_state_dict({name: weights[name] for name in self.ema.state_dict()})
        self.step = 0
        bf16 = config.precision == "bf16" or (config.precision == "auto" and bf16_is_fast(device))
        if self.world_size > 1:  # machines of several kinds must agree on the arithmetic
            agreed = torch.tensor(float(bf16), device=device)
            dist.all_reduce(agreed, dist.ReduceOp.MIN)
            bf16 = bool(agreed.item())
        self.bf16 = bf16
        self.optimizers = make_optimizers(self.model, config)
        self._forward_backward = ForwardBackward(self.model, bf16=bf16)
        # The next batch, built in advance, with the step, images and labels that it is for.
        self._prefetched: tuple[tuple[int, Tensor, Tensor | None], Batch] | None = None
        self._parameters: list[Tensor] = [*self.model.parameters()]
        self._ema_parameters: list[Tensor] = [*self.ema.parameters()]
        named = dict(self.model.named_parameters())
        self._averaged: list[Tensor] = [named[name] for name, _ in self.ema.named_parameters()]
        bits = torch.zeros((), device=device)
        self._averager = (
            GradientAverager([*self._parameters, bits]) if self.world_size > 1 else None
        )
        if device.type == "cpu":
            keep_freed_memory()

    def take_step(self, images: Tensor, labels: Tensor | None) -> float:
        """Train on the next batch and return its bits/dim.

        The following batch is prefetched, so an in-place change of the arguments takes effect one
        step later.

        Args:
            images: The whole training set, uint8 ``[N, T, C]``.
            labels: Its labels, int64 ``[N]``, or None.

        Raises:
            FloatingPointError: If the loss or the gradient is not finite.
        """
        canvas, label = self._batch(self.step, images, labels)
        self.model.train()
        seed_hash_functions(self.config.seed, self.step)
        bits = self._forward_backward(
            canvas.to(self.device), None if label is None else label.to(self.device)
        )
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if self._averager:
            self._averager.average([*gradients, bits])
        norm = torch.nn.utils.get_total_norm(gradients)
        # Comparing the norm would synchronize a GPU before the step is fully enqueued.
        if self.device.type == "cuda" or norm > 1:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, 1.0, norm)
        step_optimizers(self.optimizers, learning_rate_factor(self.step, self.config))
        if self.step + 1 < self.config.steps:
            following = self._batch(self.step + 1, images, labels)  # while a GPU is computing
            self._prefetched = (self.step + 1, images, labels), following
        value = bits.item()
        if not (math.isfinite(value) and math.isfinite(norm.item())):
            raise FloatingPointError(
                f"training diverged at step {self.step}: the loss is {value} and the gradient's "
                f"norm {norm.item()}; {_RETRY_HINT}"
            )
        self.step += 1
        self._update_ema()
        return value

    def _batch(self, step: int, images: Tensor, labels: Tensor | None) -> Batch:
        """Return this process's share of a step's batch, prefetched or built now."""
        if self._prefetched is not None:
            key, batch = self._prefetched
            if key[0] == step and key[1] is images and key[2] is labels:
                return batch
        size = self.config.batch // self.world_size
        share = slice(self.rank * size, (self.rank + 1) * size)
        return make_batch(step, images, labels, self.config, share, self.model.config)

    @torch.no_grad()
    def _update_ema(self) -> None:
        # A smaller decay at first, so that the average forgets the random initial weights.
        decay = min(self.config.average, self.step / (self.step + 10))
        torch._foreach_lerp_(self._ema_parameters, self._averaged, 1 - decay)

    def any_stop_requested(self, requested: bool) -> bool:
        """Return True if any process was asked to stop: all must stop after the same step."""
        if self.world_size == 1:
            return requested
        stop = torch.tensor(float(requested), device=self.device)
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        return bool(stop.item())

    def check_finite(self) -> None:
        """Raise ``FloatingPointError`` if any weight is infinite or NaN."""
        if not all(
            bool(one.isfinite().all()) for one in (*self._parameters, *self._ema_parameters)
        ):
            raise FloatingPointError(
                f"the weights are not finite after step {self.step} and were not saved; "
                f"{_RETRY_HINT}"
            )

    def load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Load initial weights, which may be a part of the network's, before the first step."""
        for network in (self.model, self.ema):
            network.load_state_dict(network.state_dict() | tensors)

    def state_dict(self) -> dict[str, Any]:
        """Return all state that a bit-identical continuation needs."""
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "average": self.ema.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a ``state_dict``; raise as torch does if it is another network's."""
        self.model.load_state_dict(saved["model"])
        self.ema.load_state_dict(saved["average"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            # The rates and the implementation come from the present config and version.
            for group, current in zip(state["param_groups"], optimizer.param_groups, strict=True):
                group |= {key: current[key] for key in ("rate", "fused") if key in current}
            optimizer.load_state_dict(state)
        self.step = saved["step"]
