"""The command line: what each command does, and how it ends on what a user can mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Picture

from scanline.model.checkpoint import Defaults, load_checkpoint
from scanline.model.config import DIGITS
from scanline.model.training.curve import LINE, MARK
from tests.command_line import run_command
from tests.published import hide_other_data, write_mnist
from tests.service_fixtures import COLOUR, GREY, logs_kept, random_picture, save_tiny

COMMANDS = ["serve", "sample", "complete", "train", "evaluate", "import"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run in an empty folder, and leave the logs and threads of the test process as they were."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    with logs_kept():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "weights", "tiny", GREY)
    save_tiny(tmp_path / "weights", "colour", COLOUR)
    return tmp_path / "weights"


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """Twenty small pictures in two classes."""
    folder = tmp_path / "photographs"
    for j in range(20):
        path = folder / ("cats" if j % 2 else "dogs") / f"{j}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        random_picture(GREY, j).resize((9, 7)).save(path)
    return folder


def cells(
    path: Path, count: int, scale: int = 1
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Cut a grid of ``GREY`` images apart again."""
    values = np.asarray(Picture.open(path))[::scale, ::scale]
    columns = int(np.ceil(np.sqrt(count)))
    return [
        values[y : y + GREY.height, x : x + GREY.width]
        for y, x in ((j // columns * 8, j % columns * 7) for j in range(count))
    ]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_says_what_a_command_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(*[command][: len(command)], "--help") == 0
    said = capsys.readouterr().out
    assert "Usage" in said
    for name in COMMANDS if not command else []:
        assert name in said


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--version") == 0
    assert capsys.readouterr().out == f"scanline {version('scanline')}\n"


def test_sample_writes_a_grid_and_the_same_one_again(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(name: str, *options: object) -> bytes:
        out = tmp_path / name
        given = ["--weights", weights, "--model", "tiny", "--backend", "reference", *options]
        assert run_command("sample", out, *given) == 0
        assert f"wrote {out}" in capsys.readouterr().out
        return out.read_bytes()

    first = sample("a.png", "-n", 5, "--seed", 3, "--scale", 2, "--label", "a frog")
    assert sample("b.png", "-n", 5, "--seed", 3, "--scale", 2, "--label", "2") == first
    assert sample("c.png", "-n", 5, "--seed", 4, "--scale", 2, "--label", "2") != first
    images = cells(tmp_path / "a.png", 5, 2)
    sample("one.png", "-n", 1, "--seed", 5, "--scale", 1, "--label", "2")
    np.testing.assert_array_equal(cells(tmp_path / "one.png", 1)[0], images[2])
    with Picture.open(tmp_path / "a.png") as large:
        assert large.size == (2 * (3 * 7 - 2), 2 * (2 * 8 - 2))
    cold = ["-n", 2, "--temperature", 0, "--scale", 1]
    sample("cold.png", *cold)
    one, other = cells(tmp_path / "cold.png", 2)
    np.testing.assert_array_equal(one, other)


def test_complete_keeps_the_rows_that_are_known(weights: Path, tmp_path: Path) -> None:
    picture = random_picture(GREY)
    picture.save("given.png")
    out = tmp_path / "ways.png"
    given = ["--weights", weights, "--model", "tiny", "--backend", "reference", "--scale", 1]
    assert run_command("complete", "given.png", out, "--rows", 3, "-n", 4, *given) == 0
    ways = cells(out, 4)
    for way in ways:
        np.testing.assert_array_equal(way[:3], np.asarray(picture)[:3])
    assert len({way.tobytes() for way in ways}) == 4


def test_train_goes_on_where_it_stopped_and_the_result_draws_and_is_measured(
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
        assert {LINE, MARK} <= colours
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
    same = ["--images", photographs]  # all else is as it was begun
    assert run_command("train", *same, "--out", "first", "--resume") == 0
    assert "done: 3 of 3 steps" in capsys.readouterr().out
    assert run_command("train", *same, "--batch", 3, "--out", "first", "--resume") == 1
    assert "other settings (batch)" in capsys.readouterr().err
    assert run_command("train", *same, "--layers", 2, "--out", "first", "--resume") == 1
    assert "another model (n_layers)" in capsys.readouterr().err
    more = ["--steps", 5, "--no-compile"]
    assert run_command("train", *same, *more, "--out", "first", "--resume") == 0
    assert "done: 5 of 5 steps" in capsys.readouterr().out
    lines = [json.loads(line) for line in Path("first/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "images_per_second" in line] == [1, 2, 3, 4, 5]
    trained = load_checkpoint(Path("first/first.safetensors"))
    assert trained.model.config.classes == ("cats", "dogs")
    assert (trained.model.config.height, trained.model.config.width) == (8, 8)

    for label in ([], ["--label"]):
        known = ["--weights", "first", "--model", "first", *label]
        assert run_command("evaluate", "--images", photographs, *known) == 0
        said = capsys.readouterr().out
        assert said.startswith("first on images: ")
        assert ("with the true label" in said) is bool(label)
        assert "3 of 20 images held out" in said
    drawn = ["--weights", "first", "--model", "first", "--label", "cats", "-n", 2]
    assert run_command("sample", "drawn.png", *drawn, "--backend", "reference") == 0


@pytest.mark.parametrize(
    ("options", "kind", "draws"),
    [
        (["--attention", "softmax"], ("softmax", "elu"), True),
        (["--feature-map", "polynomial"], ("linear", "polynomial"), True),
        (["--attention", "lsh-1"], ("lsh-1", "elu"), False),
    ],
)
def test_train_takes_a_kind_of_attention(
    photographs: Path, options: list[str], kind: tuple[str, str], draws: bool
) -> None:
    small = ["--images", photographs, "--size", 8, "--grey", "--layers", 1, "--width", 8,
             "--heads", 2, "--batch", 4, "--precision", "fp32", "--steps", 1]  # fmt: skip
    assert run_command("train", *small, *options, "--out", "run") == 0
    config = load_checkpoint(Path("run/run.safetensors")).model.config
    assert (config.attention, config.feature_map) == kind
    assert Path("run/curve.png").exists()
    assert Path("run/samples.png").exists() is draws


def test_evaluate_reads_the_published_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "data" / "mnist")
    save_tiny(tmp_path / "weights", "mnist", replace(GREY, height=28, width=28, classes=DIGITS))
    given = ["evaluate", "--weights", "weights", "--data-dir", "data"]
    assert run_command(*given, "--limit", 3) == 0
    said = capsys.readouterr().out
    assert said.startswith("mnist on mnist: ")
    assert "bits/dim" in said
    assert run_command(*given, "--record", "--limit", 3) == 1
    assert "leave --limit out" in capsys.readouterr().err
    assert run_command(*given, "--record") == 0
    assert str(Path("weights", "mnist.safetensors")) in capsys.readouterr().err
    facts = load_checkpoint(tmp_path / "weights" / "mnist.safetensors").facts
    assert facts["test"]["bits_per_dim"] > 0
    assert run_command(*given[:3], "--data-dir", "nowhere") == 1
    assert "Traceback" not in capsys.readouterr().err


def test_evaluate_judges_samples_and_keeps_how_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hide_other_data(monkeypatch)
    monkeypatch.setenv("SCANLINE_CACHE", str(tmp_path / "cache"))
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
    said = capsys.readouterr().out
    assert said.startswith("mnist on mnist, 4 samples, each class in turn, guidance 2, top_p 0.9,")
    for figure in ("seeds from 3", "% are taken for their class", "Fréchet distance", "% astray"):
        assert figure in said
    assert load_checkpoint(path).defaults == before.defaults == Defaults()
    assert run_command(*given, "--label", "--guidance", 2, "--top-p", 0.9, "--set-defaults") == 0
    assert load_checkpoint(path).defaults == Defaults(guidance=2.0, top_p=0.9)
    capsys.readouterr()
    assert run_command(*given, "--label") == 0  # at its own
    assert "guidance 2, top_p 0.9," in capsys.readouterr().out
    assert run_command(*given, "--top-p", 0.8, "--set-defaults") == 0
    assert "4 samples, no label, top_p 0.8," in capsys.readouterr().out
    after = load_checkpoint(path)
    assert after.defaults == Defaults(guidance=2.0, top_p=0.8)
    assert after.facts == before.facts | {"defaults": {"guidance": 2.0, "top_p": 0.8}}
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(after.model.state_dict()[name], tensor)
    assert run_command(*given[:-4], "--samples", 7) == 1
    assert "samples must be 2 to 6" in capsys.readouterr().err


def test_evaluate_judges_a_folder_s_pictures(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("SCANLINE_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "mine"
    save_tiny(weights, "mine", replace(GREY, classes=("cats", "dogs")))
    given = ["evaluate", "--weights", weights]
    assert run_command(*given, "--images", photographs, "--samples", 9, "--label") == 1
    assert "samples must be 2 to 2" in capsys.readouterr().err
    assert not Path("cache").exists()  # refused before a classifier was trained
    judged = [*given, "--images", photographs, "--epochs", 1]
    assert run_command(*judged, "--samples", 2, "--label") == 0
    assert "2 samples, classes as the test images have them" in capsys.readouterr().out
    assert run_command(*given, "--images", photographs / "cats", "--holes", 1) == 0
    said = capsys.readouterr().out  # of a folder without classes, which no classifier learns from
    assert "squared error" in said
    assert "right" not in said


def test_import_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model_state": {"predictor.bias": torch.zeros(3)}}, "part.pt")
    Path("text.pt").write_text("no checkpoint")
    for file, out, says in (
        ("part.pt", "model.safetensors", "missing"),
        ("text.pt", "model.safetensors", "text.pt"),
        ("none.pt", "model.safetensors", "there is no file"),
        ("part.pt", "model.pt", "must end in .safetensors"),
    ):
        assert run_command("import", file, out) == 1
        error = capsys.readouterr().err
        assert error.startswith("scanline: ")
        assert says in error
    assert run_command("import", "part.pt", "model.safetensors", "--preset", "mnist") == 1
    assert "mnist-paper or cifar10-paper" in capsys.readouterr().err
    assert not Path("model.safetensors").exists()


def test_a_model_need_not_be_named(weights: Path, tmp_path: Path) -> None:
    for name, options in (("a.png", []), ("b.png", ["--model", "colour"])):  # of fewer steps
        assert run_command("sample", tmp_path / name, "--weights", weights, "-n", 1, *options) == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


WRONG: list[tuple[list[object], str]] = [
    (["sample", "--model", "other"], "there is no model 'other'"),
    (["sample", "--weights", "nowhere"], "no *.safetensors in nowhere"),
    (["sample", "samples.jpg", "--model", "tiny"], "name a file that ends in .png"),
    (["bench", "mnist", "--seconds", "inf"], "finite"),
    (["bench", "mnist", "--seconds", "nan"], "finite"),
    (["sample", "--model", "tiny", "--label", "toad"], "zero, one, a frog"),
    (["sample", "--model", "colour", "--label", "1"], "no classes"),
    (["sample", "--model", "tiny", "--backend", "abacus"], "abacus"),
    (["sample", "/proc/none/a.png", "--model", "tiny", "--backend", "reference"], "/proc/none"),
    (["complete", "text.png", "--model", "tiny", "--rows", 2], "no picture"),
    (["complete", "good.png", "--model", "tiny", "--rows", 6], "--rows must be 0 to 5"),
    (["complete", "good.png", "--model", "tiny"], "give --rows, or a picture that is transparent"),
    (["complete", "good.png", "--model", "tiny", "--rows", -1], "0 to 5"),
    (["complete", "good.png", "--model", "colour", "--rows", 1, "--fit", "exact"], "5 × 6"),
    (["train"], "say what to train on"),
    (["train", "mnist", "--images", "."], "say what to train on"),
    (["train", "digits"], "there is no 'digits'"),
    (["train", "--images", "nowhere"], "nowhere"),
    (["train", "--images", "empty"], "empty"),
    (["evaluate", "--model", "tiny", "--images", "empty"], "empty"),
    (
        ["evaluate", "--model", "tiny", "--guidance", 2, "--seed", 0],
        "--guidance, --seed: only with",
    ),
    (["evaluate", "--model", "tiny", "--set-defaults"], "only with --samples"),
    (["evaluate", "--model", "tiny", "--samples", 9, "--record"], "leave --record and --limit out"),
    (["evaluate", "--model", "tiny", "--samples", 9, "--guidance", 2], "guidance draws towards"),
    (["evaluate", "--model", "tiny", "--samples", 9, "--label", "--top-p", 0], "top_p must be"),
    (["evaluate", "--model", "colour", "--samples", 9, "--label"], "no classes"),
    (["evaluate", "--model", "tiny", "--holes", 9, "--label"], "leave --label out"),
    (["evaluate", "--model", "tiny", "--images", ".", "--dataset", "mnist"], "not for --images"),
    (["train", "mnist", "--size", 64], "--size and --grey are for --images"),
    (["train", "mnist", "--grey"], "--size and --grey are for --images"),
    (["train", "--images", "."], "lies in ., and its own pictures would be taken"),
    (["train", "--images", ".", "--out", "../run", "--processes", 3], "does not divide by 3"),
    (["train", "--images", ".", "--out", "../run", "--data-dir", "."], "not for --images"),
    (["bench", "mnist", "--http", "--slots", 2], "--http goes with --backend and --repeats"),
    (["bench", "mnist", "--http", "--pretend", 9, "--repeats", 2], "--pretend goes with --http"),
    (["bench", "mnist", "--training", "--seconds", 1], "--training goes with"),
    (["bench", "--training", "--weights", "."], "--training goes with"),
    (["bench", "imagenet", "--weights", "weights"], "there is no model 'imagenet' in weights"),
    (["bench", "mnist", "--device", "cuda", "--pretend", 9], "--device cuda goes with"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG)
def test_what_a_user_can_mend_ends_with_a_sentence(
    arguments: list[object], says: str, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.png").write_text("hello")
    Path("empty").mkdir()
    random_picture(GREY).save("good.png")
    if arguments[0] not in ("train", "bench") and "--weights" not in arguments:
        arguments = [*arguments, "--weights", weights]
    assert run_command(*arguments) == 1
    error = capsys.readouterr().err
    assert "scanline: " in error
    assert says in error
    assert "Traceback" not in error
    assert not Path("samples.png").exists()


@pytest.mark.parametrize(
    "arguments",
    [["sample", "-n", 0], ["sample", "--seed", -1], ["sample", "--seed", 2**64],
     ["sample", "--temperature", "nan"], ["sample", "--temperature", 3],
     ["complete", "none.png"], ["complete", "none.png", "--temperature", "nan"],
     ["evaluate", "--samples", 9, "--temperature", "nan"], ["train", "mnist", "--seed", 2**63],
     ["train", "mnist", "--steps", 0],
     ["train", "mnist", "--processes", 0], ["train", "mnist", "--shift", -1],
     ["train", "--size", 1], ["import", "one"],
     ["evaluate", "--limit", 0], ["sample", "--colour", 1], ["draw"]],
)  # fmt: skip
def test_a_wrong_option_is_a_usage_error(
    arguments: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*arguments) == 2
    error = capsys.readouterr().err
    assert "Usage" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["figure1", "figure2", "supplement", "table1", "table2"])
def test_a_data_folder_is_read_or_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, folder: Path, *, quick: bool, data_dir: Path | None) -> None:
        raise ValueError(f"{name} of {data_dir}")

    monkeypatch.setattr("scanline.model.paper.experiments.run", run)
    reads = name.startswith("table")
    assert run_command("paper", name, "--quick", "--data-dir", "data") == (1 if reads else 2)
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert (f"{name} of data" if reads else "No such option: --data-dir") in error
    assert run_command("paper", name, "--quick") == 1
    assert f"{name} of None" in capsys.readouterr().err


def test_training_needs_none_of_the_services_packages(photographs: Path, tmp_path: Path) -> None:
    """A machine with a GPU may have torch and little else."""
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
