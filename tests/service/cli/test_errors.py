"""User errors: a message without traceback, and the exit status."""

import platform
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import typer.main

from scanline.model.paper.experiment import Experiment
from scanline.model.paper.runner import EXPERIMENTS
from scanline.service.cli.paper import paper
from tests.service.cli.command_line import run_command
from tests.service.fixtures import GREY, random_picture

FOREIGN_ISA = "avx2" if platform.machine() in ("aarch64", "arm64") else "neondot"
WRONG: list[tuple[list[object], str]] = [
    (["sample", "--model", "other"], "there is no model 'other'"),
    (["sample", "--weights", "nowhere"], "there is no folder nowhere: pass a folder with"),
    (["sample", "samples.jpg", "--model", "tiny"], "must end in .png"),
    (["bench", "mnist", "--seconds", "inf"], "finite"),
    (["bench", "mnist", "--seconds", "nan"], "finite"),
    (["sample", "--model", "tiny", "--label", "toad"], "zero, one, a frog"),
    (["sample", "--model", "tiny", "--temperature", "nan"], "temperature must be 0 to 2"),
    (["sample", "--model", "colour", "--label", "1"], "no classes"),
    (["sample", "--model", "tiny", "--backend", "abacus"], "abacus"),
    (["sample", "/proc/none/a.png", "--model", "tiny", "--backend", "reference"], "/proc/none"),
    (["sample", "--model", "tiny", "-n", 10**8], "and a file can have 268,435,456: lower -n or"),
    (["complete", "good.png", "--model", "tiny", "--rows", 2, "-n", 10**6], "lower -n or --scale"),
    (["complete", "text.png", "--model", "tiny", "--rows", 2], "not an image"),
    (["complete", "good.png", "--model", "tiny", "--rows", 6], "--rows must be 0 to 5"),
    (["complete", "good.png", "--model", "tiny"], "give --rows, or a picture that is transparent"),
    (["complete", "good.png", "--model", "tiny", "--rows", -1], "0 to 5"),
    (
        ["complete", "good.png", "--model", "tiny", "--rows", 2, "--temperature", 3],
        "temperature must be 0 to 2",
    ),
    (["complete", "good.png", "--model", "colour", "--rows", 1, "--fit", "exact"], "5 × 6"),
    (["complete", "good.png", "good.png", "--model", "tiny", "--rows", 1], "the picture itself"),
    (["train"], "choose what to train on"),
    (["train", "mnist", "--images", "."], "choose what to train on"),
    (["train", "digits"], "unknown preset 'digits': choose mnist, cifar10, mnist-paper or"),
    (["train", "digits", "--heads", 3], "unknown preset 'digits'"),
    (["train", "--shift", 40], "choose what to train on"),
    (["train", "--images", "nowhere"], "nowhere"),
    (["train", "--images", "empty"], "empty"),
    (["evaluate", "--model", "tiny", "--images", "empty"], "empty"),
    (
        ["evaluate", "--model", "tiny", "--guidance", 2, "--seed", 0],
        "--guidance, --seed: not allowed with the bits/dim of a test set, which takes --label",
    ),
    (["evaluate", "--model", "tiny", "--set-defaults"], "--set-defaults: not allowed with"),
    (
        ["evaluate", "--model", "tiny", "--samples", 9, "--record"],
        "--record: not allowed with --samples",
    ),
    (["evaluate", "--model", "tiny", "--samples", 9, "--guidance", 2], "guidance needs a label"),
    (["evaluate", "--model", "tiny", "--samples", 9, "--label", "--top-p", 0], "top_p must be"),
    (["evaluate", "--model", "colour", "--samples", 9, "--label"], "no classes"),
    (["evaluate", "--model", "tiny", "--samples", 9, "--temperature", 3], "temperature must be"),
    (
        ["evaluate", "--model", "tiny", "--holes", 9, "--label"],
        "--label: not allowed with --holes, which takes --top-p, --epochs",
    ),
    (["evaluate", "--model", "tiny", "--holes", 9, "--top-p", 2], "top_p must be above 0"),
    (
        ["evaluate", "--model", "tiny", "--samples", 9, "--holes", 9],
        "--holes: not allowed with --samples",
    ),
    (
        ["evaluate", "--model", "tiny", "--precision", "int8", "--label"],
        "--label: not allowed with --prec",
    ),
    (["bench", "mnist", "--pretend", 9], "--pretend needs --http"),
    (["bench", "mnist", "--backend", "reference", "--isa", "avx2"], "need the native backend"),
    (["bench", "mnist", "--isa", FOREIGN_ISA], f"has no {FOREIGN_ISA}; it has "),
    (["bench", "mnist", "--http", "--precision", "int8"], "--precision: not allowed with --http"),
    (["evaluate", "--model", "tiny", "--images", ".", "--dataset", "mnist"], "not for --images"),
    (["evaluate", "--model", "tiny", "--dataset", "digits"], "'digits': choose mnist or cifar10"),
    (["evaluate", "--model", "tiny"], "FOLDER, --dataset mnist or --dataset cifar10"),
    (["train", "mnist", "--size", 64], "--size and --grey are for --images"),
    (["train", "mnist", "--grey"], "--size and --grey are for --images"),
    (["train", "--images", "."], "lies in ., so its sample images would become"),
    (["train", "--images", ".", "--out", "../run", "--processes", 3], "cannot be divided among 3"),
    # Before what may be many pictures are read: there are none.
    (
        ["train", "--images", "nowhere", "--out", "../run", "--processes", 3],
        "cannot be divided among 3",
    ),
    (
        ["train", "--images", "nowhere", "--out", "../run", "--heads", 3],
        "not a multiple of n_heads 3",
    ),
    (["train", "--images", "nowhere", "--out", "../run", "--shift", 28], "shift must be less than"),
    (["train", "--images", ".", "--out", "../run", "--data-dir", "."], "not for --images"),
    (["bench", "mnist", "--http", "--slots", 2], "--slots: not allowed with --http"),
    (
        ["bench", "mnist", "--http", "--pretend", 9, "--repeats", 2],
        "--repeats: not allowed with --pretend",
    ),
    (["bench", "mnist", "--training", "--seconds", 1], "--seconds: not allowed with --training"),
    (["bench", "--training", "--weights", "."], "--weights: not allowed with --training"),
    (["bench", "imagenet", "--weights", "weights"], "there is no model 'imagenet' in weights"),
    (
        ["bench", "mnist", "--device", "cuda", "--pretend", 9],
        "--pretend: not allowed with --device cuda",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_user_errors_end_with_a_message(
    arguments: list[object], message: str, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.png").write_text("hello")
    Path("empty").mkdir()
    random_picture(GREY).save("good.png")
    if arguments[0] not in ("train", "bench") and "--weights" not in arguments:
        arguments = [*arguments, "--weights", weights]
    assert run_command(*arguments) == 1
    error = capsys.readouterr().err
    assert "scanline: " in error
    assert message in error
    assert "Traceback" not in error
    assert not Path("samples.png").exists()


def test_import_does_not_overwrite_a_file(
    weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = weights / "tiny.safetensors"
    before = path.read_bytes()
    assert run_command("import", path, path) == 1
    assert "exists already: name another file" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [["sample", "-n", 0], ["sample", "--seed", -1], ["sample", "--seed", 2**64],
     ["sample", "--temperature", "hot"], ["complete", "none.png"],
     ["train", "mnist", "--seed", 2**63], ["train", "mnist", "--steps", 0],
     ["train", "mnist", "--processes", 0], ["train", "mnist", "--shift", -1],
     ["train", "--size", 1], ["import", "one"],
     ["evaluate", "--limit", 0], ["sample", "--colour", 1], ["draw"]],
)  # fmt: skip
def test_invalid_options_are_usage_errors(
    arguments: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*arguments) == 2
    error = capsys.readouterr().err
    assert "Usage" in error
    assert "Traceback" not in error


def test_every_experiment_has_a_command() -> None:
    commands = typer.main.get_group(paper).commands.keys()
    assert commands == {*EXPERIMENTS, "page"}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - {"table3"}))
def test_data_dir_is_accepted_by_experiments_with_data_only(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(one: Experiment[Any], *rest: object, data_dir: Path | None, **options: object) -> None:
        raise ValueError(f"{one.name} of {data_dir}")

    monkeypatch.setattr("scanline.model.paper.runner.run_units", run)
    reads = name.startswith("table")
    assert run_command("paper", name, "--quick", "--data-dir", "data") == (1 if reads else 2)
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (f"{name} of data" if reads else "No such option: --data-dir") in error
    assert run_command("paper", name, "--quick") == 1
    assert f"{name} of None" in capsys.readouterr().err


def test_control_characters_in_messages_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = {"format": "\x1b]0;owned\x07\nscan\x9b2Jline"}
    path = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, foreign)
    assert run_command("sample", "a.png", "--weights", tmp_path) == 1
    error = capsys.readouterr().err
    assert r"its format is \x1b]0;owned\x07" in error
    assert all(line.isprintable() for line in error.splitlines())
