"""Collective operations of data-parallel processes.

On one CPU machine they use shared memory, which is many times faster than sockets. On several
machines and on GPUs they use the process group.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

log = logging.getLogger("scanline.training")


class GradientAverager:
    """All-reduce of float32 tensors of fixed shapes; every process gets the same bits.

    Args:
        like: Tensors with the shapes and the device of the tensors to average.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        size = sum(x.numel() for x in like)
        memory = _shared_memory((1 + self._world_size) * size, like[0].device)
        if memory is None:
            self._inputs, self._mean = None, torch.empty(size, device=like[0].device)
            own_input = self._mean
        else:
            self._mean, self._inputs = memory[:size], memory[size:].view(self._world_size, size)
            own_input = self._inputs[self._rank]
        self._own_input = _split_like(own_input, like)
        self._means = _split_like(self._mean, like)
        self._shard = _shard_slice(size, self._rank, self._world_size)

    @torch.no_grad()
    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over all processes.

        Raises:
            RuntimeError: If another process has ended.
        """
        torch._foreach_copy_(self._own_input, tensors)
        if self._inputs is None:
            dist.all_reduce(self._mean)
            self._mean /= self._world_size
        else:
            dist.barrier()  # all inputs are written
            torch.mean(self._inputs[:, self._shard], 0, out=self._mean[self._shard])
            dist.barrier()  # all shards of the mean are written, and the inputs are free again
        torch._foreach_copy_(tensors, self._means)


class ShardedMap:
    """Map over batches of tensors that divides each batch among the processes.

    Without shared memory every process computes the whole map.

    Args:
        like: Tensors with the device and the total number of elements of the batches.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        parallel = dist.is_initialized() and dist.get_world_size() > 1
        size = sum(x.numel() for x in like)
        self._memory = _shared_memory(size, like[0].device) if parallel else None

    def run(self, batches: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Compute ``work(batch)`` for each batch.

        Args:
            batches: Tensors ``[n, ...]`` with the total size given to the constructor.
            work: Maps each of the n entries independently and keeps the shape.

        Returns:
            float32 results, which the next call overwrites.
        """
        if self._memory is None:
            return [work(batch).float() for batch in batches]
        rank, world_size = dist.get_rank(), dist.get_world_size()
        results = _split_like(self._memory, batches)
        dist.barrier()  # all processes have read the previous results
        for batch, result in zip(batches, results, strict=True):
            shard = _shard_slice(len(batch), rank, world_size)
            if shard.start < shard.stop:
                result[shard] = work(batch[shard])
        dist.barrier()
        return results


def _split_like(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split a flat tensor into views with the shapes of ``like``."""
    ends = [0, *accumulate(x.numel() for x in like)]
    bounds = pairwise(ends)
    return [memory[slice(*bound)].view_as(x) for bound, x in zip(bounds, like, strict=True)]


def _shard_slice(count: int, rank: int, world_size: int) -> slice:
    return slice(count * rank // world_size, count * (rank + 1) // world_size)


def _shared_memory(size: int, device: torch.device) -> Tensor | None:
    """Allocate ``size`` float32 values shared by all processes.

    Returns None in every process if the tensors live on a GPU, if the processes run on several
    machines, or if any process cannot map the memory. The memory is an anonymous file: a file on
    disk would be written back again and again, and ``/dev/shm`` is small in a container. Only Linux
    has anonymous files, and may refuse them.
    """
    # LOCAL_WORLD_SIZE is set by torchrun; without torchrun all processes are on this machine.
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "0") if "RANK" in os.environ else None
    one_machine = local_size in (None, str(dist.get_world_size()))
    if device.type != "cpu" or not one_machine or not hasattr(os, "memfd_create"):
        return None
    with _anonymous_file(4 * size) as path:
        memory: Tensor | None = None
        with contextlib.suppress(OSError, RuntimeError):
            if path:  # torch would create a file for an empty path
                memory = torch.from_file(path, shared=True, size=size)
        mapped = torch.tensor(memory is not None)
        # Also keeps the file open until every process has mapped it.
        dist.all_reduce(mapped, dist.ReduceOp.MIN)
    if not mapped and dist.get_rank() == 0:
        log.warning("no shared memory is available: the training processes use sockets")
    return memory if mapped else None


@contextlib.contextmanager
def _anonymous_file(size: int) -> Iterator[str]:
    """Broadcast the path of an anonymous file of ``size`` bytes, or "" if there is none."""
    with contextlib.ExitStack() as stack:
        path = [""]
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):
                file = os.memfd_create("scanline")
                stack.callback(os.close, file)
                os.posix_fallocate(file, 0, size)  # else a lack of memory would be a SIGBUS later
                path = [f"/proc/{os.getpid()}/fd/{file}"]
        dist.broadcast_object_list(path)
        yield path[0]
