"""``scanline compact``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import random_network, tiny_config
from tests.service.cli.command_line import run_command


def test_compact_writes_a_smaller_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "it.safetensors", tmp_path / "small.safetensors"
    network = random_network(tiny_config()).float()
    save_checkpoint(source, network, {"steps": 2})
    assert run_command("compact", str(source), str(out)) == 0
    assert f"scanline evaluate --weights {tmp_path} --model small" in capsys.readouterr().out
    assert out.stat().st_size < source.stat().st_size
    small = load_checkpoint(out)
    assert small.facts == {"steps": 2}
    weight = network.head.predictor.weight
    assert torch.equal(small.model.head.predictor.weight, weight.half().float())
    assert run_command("compact", str(source), str(out)) == 1
    assert "exists already" in capsys.readouterr().err
