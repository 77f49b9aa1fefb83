"""What processes that train together tell each other at each step.

On one machine they do so in memory that all of them see, which is many times faster than sockets;
elsewhere and on devices through the process group.
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
    """Averages float32 tensors of the same shapes at each step, to the same bits for everyone."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        size = sum(x.numel() for x in like)
        memory = _share((1 + self._world) * size, like[0].device)
        if memory is None:
            self._given, self._mean = None, torch.empty(size, device=like[0].device)
            mine = self._mean
        else:
            self._mean, self._given = memory[:size], memory[size:].view(self._world, size)
            mine = self._given[self._rank]
        self._mine, self._means = _pieces(mine, like), _pieces(self._mean, like)
        self._part = _part(size, self._rank, self._world)

    @torch.no_grad()
    def average(self, tensors: list[Tensor]) -> None:
        """Replace tensors by their means over the processes.

        Raises ``RuntimeError`` where another process has ended.
        """
        torch._foreach_copy_(self._mine, tensors)
        if self._given is None:
            dist.all_reduce(self._mean)
            self._mean /= self._world
        else:
            dist.barrier()  # all have given theirs
            torch.mean(self._given[:, self._part], 0, out=self._mean[self._part])
            dist.barrier()  # every part of the mean is there, and nobody reads what was given
        torch._foreach_copy_(tensors, self._means)


class ShardedMap:
    """Divides work on many tensors among the processes, where they share memory."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        together = dist.is_initialized() and dist.get_world_size() > 1
        size = sum(x.numel() for x in like)
        self._memory = _share(size, like[0].device) if together else None

    def run(self, batches: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """Give float32 ``work(batch)`` of each ``batch: [n, ...]``, which has its shape.

        ``work`` must map each of the n by itself, whatever the others are. The batches are of as
        many elements as was said first, and what comes back is valid until the next call.
        """
        if self._memory is None:
            return [work(batch).float() for batch in batches]
        rank, world = dist.get_rank(), dist.get_world_size()
        results = _pieces(self._memory, batches)
        dist.barrier()  # nobody reads what was there before
        for batch, result in zip(batches, results, strict=True):
            mine = _part(len(batch), rank, world)
            if mine.start < mine.stop:
                result[mine] = work(batch[mine])
        dist.barrier()
        return results


def _pieces(memory: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    ends = [0, *accumulate(x.numel() for x in like)]
    return [memory[slice(*of)].view_as(x) for of, x in zip(pairwise(ends), like, strict=True)]


def _part(count: int, rank: int, world: int) -> slice:
    return slice(count * rank // world, count * (rank + 1) // world)


def _share(size: int, device: torch.device) -> Tensor | None:
    """Give so many floats that all processes see, or all of them None: on a device, or without any.

    They have no name in a file system: a file would be written to the disk again and again, and
    ``/dev/shm`` is small in a container. Only Linux has such, and may refuse it.
    """
    # torchrun says how many of its processes are here; those that we start all are.
    here = os.environ.get("LOCAL_WORLD_SIZE", "0") if "RANK" in os.environ else None
    one_machine = here in (None, str(dist.get_world_size()))
    if device.type != "cpu" or not one_machine or not hasattr(os, "memfd_create"):
        return None
    with _nameless_file(4 * size) as place:
        memory: Tensor | None = None
        with contextlib.suppress(OSError, RuntimeError):
            if place:  # or torch would make a file where it stands
                memory = torch.from_file(place, shared=True, size=size)
        everyone = torch.tensor(memory is not None)
        dist.all_reduce(everyone, dist.ReduceOp.MIN)  # by then all have opened it that can
    if not everyone and dist.get_rank() == 0:
        log.warning("the system gives no memory to share: processes train together through sockets")
    return memory if everyone else None


@contextlib.contextmanager
def _nameless_file(size: int) -> Iterator[str]:
    """Tell all processes where to find so many bytes that the first one has; "" if it has none."""
    with contextlib.ExitStack() as stack:
        place = [""]
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):
                file = os.memfd_create("scanline")
                stack.callback(os.close, file)
                os.posix_fallocate(file, 0, size)  # or the lack of it would kill us later
                place = [f"/proc/{os.getpid()}/fd/{file}"]
        dist.broadcast_object_list(place)
        yield place[0]
