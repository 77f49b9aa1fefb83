"""Tests of Muon, and of the division of parameters between Muon and AdamW."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scanline.model.network import LinearTransformer
from scanline.model.training.muon import Muon, orthogonalise
from scanline.model.training.optimizers import make_optimizers
from scanline.model.training.stop_signal import StopSignal
from scanline.model.training.trainer import Trainer
from tests.model.training.fixtures import (
    CONFIG,
    CPU,
    MODEL,
    dataset,
)


def test_edge_rate_applies_to_input_and_output_maps(tmp_path: Path) -> None:
    edges = {"input.linear.weight", "head.predictor.weight"}
    distances: dict[float, dict[str, float]] = {}
    for rate in (0.0, 1e-2):
        config = replace(CONFIG, steps=3, edge_rate=rate)
        trainer = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        before = {
            name: p.detach().clone() for name, p in trainer.train_state.model.named_parameters()
        }
        trainer.train(dataset(), None, StopSignal(), quiet=True)
        distances[rate] = {
            name: float((p.detach() - before[name]).abs().max())
            for name, p in trainer.train_state.model.named_parameters()
        }
        again = Trainer(replace(MODEL, encoding="linear"), config, tmp_path / str(rate), CPU)
        again.resume()
        groups = [group["rate"] for o in again.train_state.optimizers for group in o.param_groups]
        assert sorted(groups) == sorted([config.muon_rate, config.learning_rate, rate])
    assert edges < distances[0.0].keys()
    assert {name for name, far in distances[0.0].items() if far == 0} == edges
    assert all(distances[1e-2][name] > 0 for name in edges)


def test_muon_optimizes_linear_maps_of_blocks_only() -> None:
    """Weights of convolutions are matrices too, but are left to AdamW."""
    model = LinearTransformer(replace(MODEL, short_conv="2x3"))
    muon, _ = make_optimizers(model, CONFIG)
    names = {parameter: name for name, parameter in model.named_parameters()}
    stepped = {names[p] for group in muon.param_groups for p in group["params"]}
    assert stepped == {
        f"blocks.0.{of}.weight"
        for of in (*(f"attention.{part}" for part in ("query", "key", "value", "out")),
                   "linear1", "linear2")
    }  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), [(3, 12), (12, 3)])
def test_muon_step_is_orthogonalised_nesterov_momentum(rows: int, columns: int) -> None:
    """A tall matrix steps further by the root of its aspect ratio; weight decay does not."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(rows, columns, generator=generator))
    muon = Muon([weight], lr=0.1, weight_decay=0.5, momentum=0.9)
    expected, momentum = weight.detach().clone(), torch.zeros(rows, columns)
    for _ in range(3):
        weight.grad = torch.randn(rows, columns, generator=generator)
        momentum = 0.9 * momentum + 0.1 * weight.grad
        step = orthogonalise((0.1 * weight.grad + 0.9 * momentum)[None])[0]
        assert torch.linalg.svdvals(step).sub(1).abs().max() < 0.4
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * max(1.0, rows / columns) ** 0.5 * step
        muon.step()
        torch.testing.assert_close(weight.detach(), expected)
