"""``scanline train``, alone and followed by other commands."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image as Picture

from scanline.model.checkpoint import load_checkpoint
from scanline.model.training.learning_curve import TRAINING_COLOR, VALIDATION_COLOR
from tests.service.cli.command_line import run_command


@pytest.mark.slow
def test_train_resumes_and_its_result_can_be_sampled_and_evaluated(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--images", photographs, "--size", 8, "--grey", "--layers", 1, "--width", 8,
             "--heads", 2, "--batch", 4, "--precision", "fp32"]  # fmt: skip
    often = ["--checkpoint-every", 2, "--evaluate-every", 2, "--hold-out", 3]
    assert run_command("train", *small, *often, "--steps", 3, "--out", "first") == 0
    assert "done: 3 of 3 steps" in capsys.readouterr().out
    with Picture.open("first/samples.png") as samples:
        assert samples.mode == "L"
    with Picture.open("first/curve.png") as curve:
        colours = {colour for _, colour in curve.getcolors(1 << 16) or []}
        assert {TRAINING_COLOR, VALIDATION_COLOR} <= colours
    assert run_command("train", *small, *often, "--steps", 3, "--out", "first") == 1
    assert "add --resume" in capsys.readouterr().err
    assert run_command("train", *small, *often, "--steps", 3, "--out", "none", "--resume") == 1
    assert "no run to resume in none" in capsys.readouterr().err
    given = ["--from", "first/first.safetensors", "--shift", 1, "--processes", 2]
    assert run_command("train", *small, *given, "--steps", 1, "--out", "second") == 0
    assert capsys.readouterr().out.count("done: 1 of 1 steps") == 1
    recipe = load_checkpoint(Path("second/second.safetensors")).facts["training"]
    assert recipe["shift"] == 1
    assert run_command("train", *small, *given, "--steps", 2, "--out", "second", "--resume") == 1
    assert "leave one of them out" in capsys.readouterr().err
    same = ["--images", photographs]  # the run keeps its other settings
    assert run_command("train", *same, "--out", "first", "--resume") == 0
    assert "done: 3 of 3 steps" in capsys.readouterr().out
    assert run_command("train", *same, "--batch", 3, "--out", "first", "--resume") == 1
    assert "other settings (batch)" in capsys.readouterr().err
    assert run_command("train", *same, "--layers", 2, "--out", "first", "--resume") == 1
    assert "another network (n_layers)" in capsys.readouterr().err
    nowhere = ["--images", "nowhere"]  # checked before the images are read
    assert run_command("train", *nowhere, "--batch", 3, "--out", "first", "--resume") == 1
    assert "other settings (batch)" in capsys.readouterr().err
    more = ["--steps", 5]
    assert run_command("train", *same, *more, "--out", "first", "--resume") == 0
    assert "done: 5 of 5 steps" in capsys.readouterr().out
    lines = [json.loads(line) for line in Path("first/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "images_per_second" in line] == [1, 2, 3, 4, 5]
    trained = load_checkpoint(Path("first/first.safetensors"))
    assert trained.model.config.classes == ("cats", "dogs")
    assert (trained.model.config.height, trained.model.config.width) == (8, 8)
    begin = ["--from", "first/first.safetensors", "--batch", 4, "--precision", "fp32"]
    assert run_command("train", *same, *begin, "--steps", 1, "--out", "third") == 0
    assert (
        "done: 1 of 1 steps" in capsys.readouterr().out
    )  # with the checkpoint's size and channels
    assert load_checkpoint(Path("third/third.safetensors")).model.config == trained.model.config

    for label in ([], ["--label"]):
        known = ["--weights", "first", "--model", "first", *label]
        assert run_command("evaluate", "--images", photographs, *known) == 0
        output = capsys.readouterr().out
        assert output.startswith(f"first on {photographs.name}: ")
        assert ("with the true label" in output) is bool(label)
        assert "3 of 20 images held out" in output
    assert run_command("train", *small, "--hold-out", 0, "--steps", 1, "--out", "all") == 0
    whole: list[object] = ["--weights", "all", "--model", "all", "--images", photographs]
    assert run_command("evaluate", *whole) == 0
    assert "(the model was trained on all of them)" in capsys.readouterr().out
    assert run_command("evaluate", *whole, "--record") == 1
    assert "was not trained on" in " ".join(capsys.readouterr().err.split())
    assert "test" not in load_checkpoint(Path("all/all.safetensors")).facts
    drawn = ["--weights", "first", "--model", "first", "--label", "cats", "-n", 2]
    assert run_command("sample", "drawn.png", *drawn, "--backend", "reference") == 0


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        pytest.param(["--attention", "softmax"], {"attention": "softmax"}, id="softmax"),
        pytest.param(["--feature-map", "fourier"], {"feature_map": "fourier"}, id="fourier"),
        pytest.param(
            ["--attention", "lsh-8", "--lsh-chunk", 7, "--lsh-combine", "mean"],
            {"attention": "lsh-8", "lsh_chunk": 7, "lsh_combine": "mean"},
            id="lsh",
        ),
    ],
)
def test_train_accepts_each_kind_of_attention_and_draws_with_it(
    photographs: Path, options: list[object], fields: dict[str, object]
) -> None:
    small = ["--images", photographs, "--size", 4, "--grey", "--layers", 1, "--width", 8,
             "--heads", 2, "--batch", 4, "--precision", "fp32", "--steps", 1]  # fmt: skip
    assert run_command("train", *small, *options, "--out", "run") == 0
    config = load_checkpoint(Path("run/run.safetensors")).model.config
    assert config.to_dict() == config.to_dict() | fields
    assert Path("run/curve.png").exists()
    with Picture.open("run/samples.png") as samples:
        assert len(samples.getcolors() or []) > 8
    trained = ["--weights", "run", "--model", "run"]
    assert run_command("sample", "drawn.png", *trained, "-n", 1) == 0
    assert Path("drawn.png").exists()


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_commands_work_with_a_closed_output(
    closed: str, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell closes it with ``>&-``."""
    monkeypatch.setattr(sys, closed, None)
    run_command("train", "--images", photographs, "--size", 8, "--grey", "--layers", 1,
                "--width", 8, "--heads", 2, "--batch", 2, "--steps", 1, "--processes", 1,
                "--out", tmp_path / "run")  # fmt: skip
    assert (tmp_path / "run" / "run.safetensors").exists()
    assert run_command("sample", tmp_path / "a.png", "--weights", tmp_path / "run") == 0
    assert (tmp_path / "a.png").exists()
    getattr(sys, closed).close()  # avoids a ResourceWarning


@pytest.mark.slow
def test_training_works_without_service_packages(photographs: Path, tmp_path: Path) -> None:
    """A GPU machine may have torch but not FastAPI."""
    for name in ("fastapi", "pydantic", "pydantic_settings", "starlette", "uvicorn"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r})\n")
    command = [sys.executable, "-m", "scanline.service", "train", "--images", photographs,
               "--size", 8, "--grey", "--layers", 1, "--width", 8, "--heads", 2, "--batch", 2,
               "--steps", 1, "--out", tmp_path / "run"]  # fmt: skip
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "done: 1 of 1 steps" in done.stdout
