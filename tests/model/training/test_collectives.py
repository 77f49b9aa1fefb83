"""Tests of collective operations in shared memory and through sockets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scanline.model.training.collectives import GradientAverager, ShardedMap
from scanline.model.training.distributed import process_group
from scanline.model.training.muon import Muon
from tests.conftest import assert_close

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL needs a GPU per process")

SHAPES = [(3, 5), (), (7,)]
STEPS = range(3)
UNAVAILABLE = ["nothing", "memfd", "memory", "mapping"]


def process_tensors(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def map_batches(step: int) -> list[Tensor]:
    return [torch.arange(30.0).view(5, 2, 3) + step, torch.full((1, 4), float(step))]


def new_muon() -> Muon:
    return Muon([torch.ones(4, 6, requires_grad=True) for _ in range(3)], lr=0.1)


def weights_after_a_step(muon: Muon, step: int) -> list[Tensor]:
    weights = muon.param_groups[0]["params"]
    for number, weight in enumerate(weights):
        weight.grad = torch.eye(4, 6) * number + step + 1
    muon.step()
    return [weight.detach().clone() for weight in weights]


def refuse(*_: object, **__: object) -> None:
    raise OSError("no memory")


def run_collectives(_: torch.device, folder: Path, unavailable: str) -> None:
    """Average, map and step a few times, and save the results of each process."""
    rank, rows = dist.get_rank(), list[int]()

    def work(batch: Tensor) -> Tensor:
        rows.append(len(batch))
        return -batch

    with pytest.MonkeyPatch.context() as patch:
        if unavailable == "memfd":  # as on macOS
            patch.delattr(os, "memfd_create")
        elif unavailable == "memory":
            patch.setattr(os, "posix_fallocate", refuse)
        elif unavailable == "mapping" and rank == 1:
            patch.setattr(torch, "from_file", refuse)
        averager, sharded_map, muon = (
            GradientAverager(process_tensors(rank, 0)),
            ShardedMap(map_batches(0)),
            new_muon(),
        )
    results: list[list[Tensor]] = []
    for step in STEPS:
        means = process_tensors(rank, step)
        averager.average(means)
        mapped = [x.clone() for x in sharded_map.run(map_batches(step), work)]
        results += [means, mapped, weights_after_a_step(muon, step)]
    # Shared memory gives rank 0 two rows of the batch of five, and none of the batch of one.
    assert sum(rows) == len(STEPS) * ((2 if rank == 0 else 4) if unavailable == "nothing" else 6), (
        unavailable
    )
    torch.save(results, folder / f"{rank}.pt")


def run_with_each_failure(device: torch.device, folder: Path) -> None:
    """Run the collectives without each facility in turn, with a folder of results for each."""
    for unavailable in UNAVAILABLE:
        (folder / unavailable).mkdir(exist_ok=True)
        run_collectives(device, folder / unavailable, unavailable)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_all_processes_get_the_same_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with process_group(2, run_with_each_failure, tmp_path) as device:
        run_with_each_failure(device, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(UNAVAILABLE)
    for unavailable in UNAVAILABLE:
        folder = tmp_path / unavailable
        assert sorted(path.name for path in folder.iterdir()) == ["0.pt", "1.pt"], unavailable
        one, other = (torch.load(folder / f"{rank}.pt") for rank in (0, 1))
        alone = new_muon()
        for step in STEPS:
            both = zip(process_tensors(0, step), process_tensors(1, step), strict=True)
            for name, expected in [
                ("means", [(a + b) / 2 for a, b in both]),
                ("results", [-batch for batch in map_batches(step)]),
                ("weights", weights_after_a_step(alone, step)),
            ]:
                for mine, theirs, right in zip(one.pop(0), other.pop(0), expected, strict=True):
                    assert torch.equal(mine, theirs), (unavailable, name)
                    assert_close(mine, right)


def test_sharded_map_in_one_process() -> None:
    (negative,) = ShardedMap([torch.ones(3, 2)]).run([torch.ones(3, 2)], lambda x: -x.bfloat16())
    assert torch.equal(negative, -torch.ones(3, 2))
    assert negative.dtype == torch.float32
