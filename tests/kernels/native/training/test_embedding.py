"""Sums of table rows against torch, and their gradients in C++."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.native.training import library
from scanline.kernels.ops.embedding import embedding_sum
from tests.conftest import assert_close


def test_sums_and_gradients_match_torch(isa: str) -> None:
    rows = 30
    table = torch.randn(rows, 3 * library.require_library().lanes, requires_grad=True)
    ids = torch.randint(0, rows, (50, 7))
    ids[:20] = rows - 1  # the last row, many times
    sums, wanted = embedding_sum(table, ids), F.embedding_bag(ids, table, mode="sum")
    assert torch.equal(sums, wanted)
    grad = torch.randn_like(sums)
    (mine,) = torch.autograd.grad(sums, table, grad)
    exact = table.detach().double().requires_grad_()
    (theirs,) = torch.autograd.grad(exact[ids].sum(1), exact, grad.double())
    assert_close(mine, theirs, torch.float32)


def test_gradient_does_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    table, ids = torch.randn(29, 64, requires_grad=True), torch.randint(0, 29, (200, 5))
    grad = torch.randn(200, 64)
    found: list[Tensor] = []
    for threads in (1, 3, 16):  # with 16 threads, some have one row and some none
        chosen = library.TrainingLibrary(threads, isa)
        monkeypatch.setattr(library, "get_library", lambda chosen=chosen: chosen)
        found += torch.autograd.grad(embedding_sum(table, ids), table, grad)
    assert all(torch.equal(found[0], other) for other in found)
