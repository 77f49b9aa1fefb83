"""Tests of ``scanline verify``, and of the recipes that ``sample`` and ``complete`` write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.kernels.native.cpu import cpu_isas
from scanline.service.recipes.recipe import embed_recipe, read_recipe
from tests.service.cli.command_line import run_command
from tests.service.fixtures import COLOUR, GREY, encode, random_picture, save_tiny


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.png"


def draw(weights: Path, out: Path, *options: object, command: str = "sample") -> None:
    files = [out] if command == "sample" else ["given.png", out]
    given = [command, *files, "--weights", weights, "--model", "tiny", *options]
    assert run_command(*given) == 0


def edit(path: Path, *places: tuple[int, int]) -> None:
    """Invert pixels of a picture, and keep its recipe."""
    recipe = read_recipe(path.read_bytes())
    assert recipe is not None
    values = np.array(Picture.open(path))
    for x, y in places:
        values[y, x] ^= 255
    path.write_bytes(embed_recipe(encode(Picture.fromarray(values)), recipe, GREY))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-n", 1, "--scale", 1, "--label", "a frog", "--guidance", 2.5],
        ["-n", 5, "--scale", 3, "--label", "random", "--top-p", 0.7],
        ["-n", 2, "--temperature", 0, "--seed", 2**64 - 1],
    ],
)
def test_sample_is_drawn_again(
    weights: Path, out: Path, options: list[object], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    draw(weights, out, *options)
    for isa in (cpu_isas()[-1], ""):  # the machine's least instruction set, and its best
        monkeypatch.setenv("SCANLINE_ISA", isa)
        assert run_command("verify", out, "--weights", weights) == 0
        assert f"{out}: Same picture, to the pixel." in capsys.readouterr().out


def test_edited_pixels(weights: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(weights, out, "-n", 4, "--scale", 4)
    edit(out, (0, 0), (3, 3), (4, 0))
    changes = out.with_name("changes.png")
    assert run_command("verify", out, "--weights", weights, "--changes", changes) == 1
    shown = capsys.readouterr()
    assert "Edited: 2 of 168 pixels were changed, the first in row 1, column 1." in shown.out
    assert f"wrote {changes}" in shown.err
    red = (np.asarray(Picture.open(changes)) == (255, 0, 80)).all(-1)
    side = 280 // 14
    assert red.sum() == 2 * side**2
    assert red[:side, : 2 * side].all()


def test_other_weights(
    weights: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(weights, out)
    save_tiny(tmp_path / "others", "tiny", COLOUR)
    assert run_command("verify", out, "--weights", tmp_path / "others") == 1
    printed = capsys.readouterr().out
    assert "other weights: the digest of 'tiny' here begins with" in printed
    assert "folder of the weights that drew it with --weights" in printed
    (weights / "tiny.safetensors").rename(weights / "renamed.safetensors")
    assert run_command("verify", out, "--weights", weights) == 0


def test_completions(weights: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = random_picture(GREY)
    picture.save("given.png")
    verify, source = ("verify", out, "--weights", weights), ("--source", "given.png")
    for n in (1, 3):
        draw(weights, out, "--rows", 3, "-n", n, "--particles", 2, command="complete")
        assert run_command(*verify) == 0
    assert run_command(*verify, *source, "--rows", 3) == 0
    capsys.readouterr()
    assert run_command(*verify, *source, "--rows", 2) == 1
    printed = capsys.readouterr().out
    assert "another part of it was marked" in printed
    assert "--source" not in printed
    picture.putalpha(Picture.new("L", picture.size, 255))
    picture.putpixel((2, 3), (0, 0))
    picture.save("given.png")
    draw(weights, out, command="complete")
    capsys.readouterr()
    assert run_command(*verify) == 1
    assert "Pass it with --source" in capsys.readouterr().out
    assert run_command(*verify, *source) == 0
    draw(weights, out)
    assert run_command(*verify, *source) == 1
    assert "not a completion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "rows", "message"),
    [
        ("given.png", [], "given.png: the part to draw is not marked: give --rows"),
        ("given.png", ["--rows", 6], "--rows must be 0 to 5"),
        ("text.png", ["--rows", 3], "text.png: the file is not an image"),
    ],
)
def test_source_that_cannot_be_used(
    weights: Path, out: Path, source: str, rows: list[object], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    random_picture(GREY).save("given.png")
    Path("text.png").write_text("hello")
    draw(weights, out, "--rows", 3, "-n", 1, command="complete")
    assert run_command("verify", out, "--weights", weights, "--source", source, *rows) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("off", ["option", "variable"])
def test_metadata_can_be_left_out(
    weights: Path, out: Path, off: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    draw(weights, out)
    with_recipe = Picture.open(out)
    with_recipe.load()
    if off == "variable":
        monkeypatch.setenv("SCANLINE_PNG_METADATA", "false")
    draw(weights, out, *(["--no-metadata"] if off == "option" else []))
    plain = Picture.open(out)
    assert plain.info == {}
    assert plain.tobytes() == with_recipe.tobytes()
    capsys.readouterr()
    assert run_command("verify", out, "--weights", weights) == 1
    assert "it has no recipe" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", 2], "--rows needs --source"),
        (["--fit", "contain"], "--fit needs --source"),
        (["--changes", "a.jpg"], "must end in .png"),
        (["--changes", "out.png"], "out.png is the picture itself: name another file"),
    ],
)
def test_invalid_options(
    weights: Path, out: Path, options: list[object], message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    draw(weights, out, "-n", 1)
    assert run_command("verify", out, "--weights", weights, *options) == 1
    assert message in capsys.readouterr().err


def test_unknown_instruction_set(
    weights: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(weights, out, "-n", 1)
    monkeypatch.setenv("SCANLINE_ISA", "mmx")
    assert run_command("verify", out, "--weights", weights) == 1
    assert "SCANLINE_ISA must be one of " in capsys.readouterr().err


def test_recipe_that_does_not_fit_the_model(
    weights: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw(weights, out, "-n", 1)
    recipe = read_recipe(out.read_bytes())
    assert recipe is not None
    hostile = recipe.model_copy(update={"label": "\x1b[2J"})
    out.write_bytes(embed_recipe(encode(Picture.open(out)), hostile, GREY))
    assert run_command("verify", out, "--weights", weights) == 1
    error = capsys.readouterr().err
    assert "does not fit the model" in error
    assert "\x1b" not in error
