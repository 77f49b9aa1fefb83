"""What processes tell each other at each step, in memory that they share and through sockets."""

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

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL wants a GPU for each")

SHAPES = [(3, 5), (), (7,)]
STEPS = range(3)
WITHOUT = ["nothing", "memfd", "memory", "a way to it"]


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
    """Average, divide and step a few times; what came of it is kept in a file for each process."""
    rank, rows = dist.get_rank(), list[int]()

    def work(batch: Tensor) -> Tensor:
        rows.append(len(batch))
        return -batch

    with pytest.MonkeyPatch.context() as patch:
        if without == "memfd":  # as on a Mac
            patch.delattr(os, "memfd_create")
        elif without == "memory":
            patch.setattr(os, "posix_fallocate", refuse)
        elif without == "a way to it" and rank == 1:
            patch.setattr(torch, "from_file", refuse)
        reducer, divider, muon = (
            GradientAverager(given(rank, 0)),
            ShardedMap(batches(0)),
            new_muon(),
        )
    found: list[list[Tensor]] = []
    for step in STEPS:
        means = given(rank, step)
        reducer.average(means)
        results = [x.clone() for x in divider.run(batches(step), work)]
        found += [means, results, weights_after_a_step(muon, step)]
    # Of five the first has two, and of one none.
    assert sum(rows) == len(STEPS) * ((2 if rank == 0 else 4) if without == "nothing" else 6), (
        without
    )
    torch.save(found, folder / f"{rank}.pt")


def exchange_without(device: torch.device, folder: Path) -> None:
    """Exchange without each in turn, and keep what came of it in a folder for each."""
    for without in WITHOUT:
        (folder / without).mkdir(exist_ok=True)
        exchange(device, folder / without, without)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux's")
def test_all_get_the_same_means_and_the_same_of_divided_work(
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
            for name, wanted in [
                ("means", [(a + b) / 2 for a, b in both]),
                ("results", [-batch for batch in batches(step)]),
                ("weights", weights_after_a_step(alone, step)),
            ]:
                for mine, theirs, right in zip(one.pop(0), other.pop(0), wanted, strict=True):
                    assert torch.equal(mine, theirs), (without, name)
                    assert_close(mine, right)


def test_alone_work_is_done_as_it_comes() -> None:
    (negative,) = ShardedMap([torch.ones(3, 2)]).run([torch.ones(3, 2)], lambda x: -x.bfloat16())
    assert torch.equal(negative, -torch.ones(3, 2))
    assert negative.dtype == torch.float32
