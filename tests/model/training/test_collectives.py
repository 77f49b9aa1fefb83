"""Tests of collective operations."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from scanline.model.training.collectives import GradientAverager, sharded_map
from scanline.model.training.distributed import process_group
from scanline.model.training.muon import Muon
from tests.conftest import assert_close

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL needs a GPU per process")

SHAPES = [(3, 5), (), (7,)]
STEPS = range(3)


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


def run_collectives(_: torch.device, folder: Path) -> None:
    """Average, map and step a few times, and save the results of each process."""
    rank, rows = dist.get_rank(), list[int]()

    def work(batch: Tensor) -> Tensor:
        rows.append(len(batch))
        return -batch

    averager, muon = GradientAverager(process_tensors(rank, 0)), new_muon()
    results: list[list[Tensor]] = []
    for step in STEPS:
        means = process_tensors(rank, step)
        averager.average(means)
        results += [means, sharded_map(map_batches(step), work), weights_after_a_step(muon, step)]
    # Rank 0 has two rows of the batch of five, and none of the batch of one.
    assert sum(rows) == len(STEPS) * (2 if rank == 0 else 4)
    torch.save(results, folder / f"{rank}.pt")


@pytest.mark.slow
def test_all_processes_get_the_same_results(tmp_path: Path) -> None:
    with process_group(2, run_collectives, tmp_path) as device:
        run_collectives(device, tmp_path)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    alone = new_muon()
    for step in STEPS:
        both = zip(process_tensors(0, step), process_tensors(1, step), strict=True)
        for name, expected in [
            ("means", [(a + b) / 2 for a, b in both]),
            ("results", [-batch for batch in map_batches(step)]),
            ("weights", weights_after_a_step(alone, step)),
        ]:
            for mine, theirs, right in zip(one.pop(0), other.pop(0), expected, strict=True):
                assert torch.equal(mine, theirs), name
                assert_close(mine, right)


def test_sharded_map_in_one_process() -> None:
    (negative,) = sharded_map([torch.ones(3, 2)], lambda x: -x)
    assert torch.equal(negative, -torch.ones(3, 2))
