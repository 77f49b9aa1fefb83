"""``scanline evaluate``."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scanline.model.checkpoint import SamplingDefaults, load_checkpoint
from scanline.model.config import DIGITS
from scanline.model.data.published_sets import load_dataset
from scanline.model.evaluation.likelihood import evaluate
from scanline.model.evaluation.records import record_defaults
from tests.dataset_files import hide_other_data, write_mnist
from tests.service.cli.command_line import run_command
from tests.service.fixtures import GREY, save_tiny


def test_evaluate_reads_published_data_sets(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hide_other_data(monkeypatch)
    monkeypatch.setenv("SCANLINE_CACHE", str(cache_folder))
    write_mnist(tmp_path / "data" / "mnist")
    save_tiny(tmp_path / "weights", "mnist", replace(GREY, height=28, width=28, classes=DIGITS))
    given = ["evaluate", "--weights", "weights", "--data-dir", "data"]
    assert run_command(*given, "--limit", 3) == 0
    output = capsys.readouterr().out
    spaced = load_dataset("mnist", "test", tmp_path / "data").take([0, 2, 4])
    result = evaluate(load_checkpoint(tmp_path / "weights" / "mnist.safetensors").model, spaced)
    assert output.startswith(f"mnist on mnist: {result}")
    assert "bits/dim" in output
    assert run_command(*given, "--record", "--limit", 3) == 1
    assert "leave --limit out" in capsys.readouterr().err
    assert run_command(*given, "--record") == 0
    assert str(Path("weights", "mnist.safetensors")) in capsys.readouterr().err
    facts = load_checkpoint(tmp_path / "weights" / "mnist.safetensors").facts
    assert facts["test"]["bits_per_dim"] > 0
    assert run_command(*given[:3], "--data-dir", "nowhere") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_evaluate_samples_and_set_defaults(
    cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hide_other_data(monkeypatch)
    monkeypatch.setenv("SCANLINE_CACHE", str(cache_folder))
    write_mnist(tmp_path / "data" / "mnist")
    path = save_tiny(
        tmp_path / "weights", "mnist", replace(GREY, height=28, width=28, classes=DIGITS)
    )
    before = load_checkpoint(path)
    given = [
        "evaluate",
        "--weights",
        "weights",
        "--data-dir",
        "data",
        "--samples",
        4,
        "--epochs",
        1,
    ]
    assert run_command(*given, "--label", "--guidance", 2, "--top-p", 0.9, "--seed", 3) == 0
    output = capsys.readouterr().out
    assert output.startswith(
        "mnist on mnist, 4 samples, each class in turn, guidance 2, top_p 0.9,"
    )
    for figure in (
        "seeds from 3",
        "% are classified as their label",
        "Fréchet distance",
        "% outliers",
    ):
        assert figure in output
    assert load_checkpoint(path).defaults == before.defaults == SamplingDefaults()
    assert run_command(*given, "--label", "--guidance", 2, "--top-p", 0.9, "--set-defaults") == 0
    assert load_checkpoint(path).defaults == SamplingDefaults(guidance=2.0, top_p=0.9)
    capsys.readouterr()
    assert run_command(*given, "--label") == 0  # with the model's defaults
    assert "guidance 2, top_p 0.9," in capsys.readouterr().out
    assert run_command(*given, "--top-p", 0.8, "--set-defaults") == 0
    assert "4 samples, no label, top_p 0.8," in capsys.readouterr().out
    after = load_checkpoint(path)
    assert after.defaults == SamplingDefaults(guidance=2.0, top_p=0.8)
    assert after.facts == before.facts | {"defaults": {"guidance": 2.0, "top_p": 0.8}}
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[name], tensor)
    assert run_command(*given[:-4], "--samples", 7) == 1
    assert "samples must be 2 to 6" in capsys.readouterr().err


def test_evaluate_samples_and_holes_with_a_folder_of_images(
    photographs: Path, cache_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "mine"
    save_tiny(weights, "mine", replace(GREY, classes=("cats", "dogs")))
    given = ["evaluate", "--weights", weights]
    assert run_command(*given, "--images", photographs, "--samples", 9, "--label") == 1
    assert "samples must be 2 to 2" in capsys.readouterr().err
    assert not (cache_folder / "classifiers").exists()  # refused before the classifier is trained
    judged = [*given, "--images", photographs, "--epochs", 1]
    assert run_command(*judged, "--samples", 2, "--label") == 0
    assert "2 samples, classes in the test images' proportions" in capsys.readouterr().out
    record_defaults(
        load_checkpoint(weights / "mine.safetensors"), weights, SamplingDefaults(top_p=0.9)
    )
    given += ["--images", photographs / "cats", "--holes", 1]
    assert run_command(*given) == 0
    output = capsys.readouterr().out  # without classes there is no classifier
    assert output.startswith("mine on cats, 1 test images, top_p 0.9")
    assert "squared error" in output
    assert "right" not in output
    assert run_command(*given, "--top-p", 1) == 0
    assert capsys.readouterr().out.startswith("mine on cats, 1 test images, top_p 1")
