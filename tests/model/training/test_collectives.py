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
WITHOUT = ["nothing", "memfd", "memory", "mapping"]


def given(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def batches(step: int) -> list[Tensor]:
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


def exchange(_: torch.device, folder: Path, without: str) -> None:
    """Average, map and step a few times, and save the results of each process."""
    rank, rows = dist.get_rank(), list[int]()

    def work(batch: Tensor) -> Tensor:
        rows.append(len(batch))
        return -batch

    with pytest.MonkeyPatch.context() as patch:
        if without == "memfd":  # as on macOS
            patch.delattr(os, "memfd_create")
        elif without == "memory":
            patch.setattr(os, "posix_fallocate", refuse)
        elif without == "mapping" and rank == 1:
            patch.setattr(torch, "from_file", refuse)
        averager, sharded_map, muon = (
            GradientAverager(given(rank, 0)),
            ShardedMap(batches(0)),
            new_muon(),
        )
    found: list[list[Tensor]] = []
    for step in STEPS:
        means = given(rank, step)
        averager.average(means)
        results = [x.clone() for x in sharded_map.run(batches(step), work)]
        found += [means, results, weights_after_a_step(muon, step)]
    # Shared memory gives rank 0 two rows of the batch of five, and none of the batch of one.
    assert sum(rows) == len(STEPS) * ((2 if rank == 0 else 4) if without == "nothing" else 6), (
        without
    )
    torch.save(found, folder / f"{rank}.pt")


def exchange_without(device: torch.device, folder: Path) -> None:
    """Run ``exchange`` without each facility in turn, with a folder of results for each."""
    for without in WITHOUT:
        (folder / without).mkdir(exist_ok=True)
        exchange(device, folder / without, without)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_all_processes_get_the_same_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with process_group(2, exchange_without, tmp_path) as device:
        exchange_without(device, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(WITHOUT)
    for without in WITHOUT:
        folder = tmp_path / without
        assert sorted(path.name for path in folder.iterdir()) == ["0.pt", "1.pt"], without
        one, other = (torch.load(folder / f"{rank}.pt") for rank in (0, 1))
        alone = new_muon()
        for step in STEPS:
            both = zip(given(0, step), given(1, step), strict=True)
            for name, expected in [
                ("means", [(a + b) / 2 for a, b in both]),
                ("results", [-batch for batch in batches(step)]),
                ("weights", weights_after_a_step(alone, step)),
            ]:
                for mine, theirs, right in zip(one.pop(0), other.pop(0), expected, strict=True):
                    assert torch.equal(mine, theirs), (without, name)
                    assert_close(mine, right)


def test_sharded_map_in_one_process() -> None:
    (negative,) = ShardedMap([torch.ones(3, 2)]).run([torch.ones(3, 2)], lambda x: -x.bfloat16())
    assert torch.equal(negative, -torch.ones(3, 2))
    assert negative.dtype == torch.float32
