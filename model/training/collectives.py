"""Collective operations of data-parallel processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor


class GradientAverager:
    """All-reduce of float32 tensors of fixed shapes; every process gets the same bits.

    Args:
        like: Tensors with the shapes and the device of the tensors to average.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._flat = torch.empty(sum(x.numel() for x in like), device=like[0].device)
        self._parts = _split_like(self._flat, like)

    @torch.no_grad()
    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over all processes.

        Raises:
            RuntimeError: If another process has ended.
        """
        torch._foreach_copy_(self._parts, tensors)
        dist.all_reduce(self._flat)
        self._flat /= dist.get_world_size()
        torch._foreach_copy_(tensors, self._parts)


def sharded_map(batches: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Compute ``work(batch)`` for each batch; the processes divide each batch among them.

    Args:
        batches: float32 tensors ``[n, ...]``.
        work: Maps each of the n entries independently, and keeps their shape and dtype.

    Returns:
        The results, with the same bits in every process.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [work(batch) for batch in batches]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    # Each process fills its shards of a zero tensor, so that the sum over all holds every result.
    flat = batches[0].new_zeros(sum(x.numel() for x in batches))
    results = _split_like(flat, batches)
    for batch, result in zip(batches, results, strict=True):
        n = len(batch)
        shard = slice(n * rank // world_size, n * (rank + 1) // world_size)
        if shard.start < shard.stop:
            result[shard] = work(batch[shard])
    dist.all_reduce(flat)
    return results


def _split_like(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat tensor into views with the shapes of ``like``."""
    ends = [0, *accumulate(x.numel() for x in like)]
    bounds = pairwise(ends)
    return [memory[slice(*bound)].view_as(x) for bound, x in zip(bounds, like, strict=True)]
