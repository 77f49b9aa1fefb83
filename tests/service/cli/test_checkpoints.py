"""``scanline import`` and ``scanline compact``."""

import os
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import load_checkpoint, save_checkpoint
from tests.conftest import random_network, tiny_config
from tests.model.test_paper_checkpoint import authors_tensors
from tests.service.cli.command_line import run_command


def test_import_refuses_unreadable_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model_state": {"predictor.bias": torch.zeros(3)}}, "part.pt")
    Path("text.pt").write_text("no checkpoint")
    for file, out, message in (
        ("part.pt", "model.safetensors", "its layers need"),
        ("text.pt", "model.safetensors", "text.pt"),
        ("none.pt", "model.safetensors", "there is no file"),
        ("part.pt", "model.pt", "must end in .safetensors"),
    ):
        assert run_command("import", file, out) == 1
        error = capsys.readouterr().err
        assert error.startswith("scanline: ")
        assert message in error
    assert run_command("import", "part.pt", "model.safetensors", "--preset", "mnist") == 1
    assert "mnist-paper or cifar10-paper" in capsys.readouterr().err
    assert not Path("model.safetensors").exists()


def test_import_writes_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model_state": authors_tensors(8)}, "theirs.pt")
    options = ("--first-value", 7, "--heads", 4)
    assert run_command("import", "theirs.pt", "ours.safetensors", *options) == 0
    assert "8 layers of 256 features and 4 heads" in capsys.readouterr().out
    config = load_checkpoint(Path("ours.safetensors")).model.config
    assert (config.n_layers, config.n_heads, config.first_value) == (8, 4, 7)


def test_import_reads_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model_state": {"predictor.bias": torch.zeros(3)}}, "part.pt")
    reading, writing = os.pipe()
    try:
        os.write(writing, Path("part.pt").read_bytes())
        os.close(writing)
        assert run_command("import", f"/dev/fd/{reading}", "model.safetensors") == 1
    finally:
        os.close(reading)
    assert "its layers need" in capsys.readouterr().err  # so it has been read


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


def test_compact_names_the_checkpoint_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"step": 1}, "training.pt")
    assert run_command("compact", "training.pt", "out.safetensors") == 1
    assert "pass the .safetensors file beside it" in capsys.readouterr().err
