"""``sample``, ``complete``, ``--help`` and ``--version``."""

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.service import __version__
from tests.service.cli.command_line import run_command
from tests.service.fixtures import GREY, encode, random_picture

COMMANDS = ["serve", "sample", "complete", "verify", "train", "evaluate", "import"]


def cells(
    path: Path, count: int, scale: int = 1
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Split a grid of ``GREY`` images."""
    values = np.asarray(Picture.open(path))[::scale, ::scale]
    columns = int(np.ceil(np.sqrt(count)))
    return [
        values[y : y + GREY.height, x : x + GREY.width]
        for y, x in ((j // columns * 8, j % columns * 7) for j in range(count))
    ]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_describes_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(*[command][: len(command)], "--help") == 0
    output = capsys.readouterr().out
    assert "Usage" in output
    for name in COMMANDS if not command else []:
        assert name in output


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--version") == 0
    assert capsys.readouterr().out == f"scanline {__version__}\n"


def test_sample_writes_a_reproducible_grid(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(name: str, *options: object) -> bytes:
        out = tmp_path / name
        given = ["--weights", weights, "--model", "tiny", "--backend", "reference", *options]
        assert run_command("sample", out, *given) == 0
        shown = capsys.readouterr()
        assert f"wrote {out}" in shown.err
        assert not shown.out  # OUT may be /dev/stdout
        return out.read_bytes()

    first = sample("a.png", "-n", 5, "--seed", 3, "--scale", 2, "--label", "a frog")
    assert sample("b.png", "-n", 5, "--seed", 3, "--scale", 2, "--label", "2") == first
    assert sample("c.png", "-n", 5, "--seed", 4, "--scale", 2, "--label", "2") != first
    images = cells(tmp_path / "a.png", 5, 2)
    sample("one.png", "-n", 1, "--seed", 5, "--scale", 1, "--label", "2")
    np.testing.assert_array_equal(cells(tmp_path / "one.png", 1)[0], images[2])
    with Picture.open(tmp_path / "a.png") as large:
        assert large.size == (2 * (3 * 7 - 2), 2 * (2 * 8 - 2))
    coldest = ["-n", 2, "--temperature", 0, "--scale", 1]
    sample("cold.png", *coldest)
    one, other = cells(tmp_path / "cold.png", 2)
    np.testing.assert_array_equal(one, other)


def test_complete_keeps_the_known_rows(weights: Path, tmp_path: Path) -> None:
    picture = random_picture(GREY)
    picture.save("given.png")
    out = tmp_path / "completions.png"
    given = ["--weights", weights, "--model", "tiny", "--backend", "reference", "--scale", 1]
    assert run_command("complete", "given.png", out, "--rows", 3, "-n", 4, *given) == 0
    completions = cells(out, 4)
    for completion in completions:
        np.testing.assert_array_equal(completion[:3], np.asarray(picture)[:3])
    assert len({completion.tobytes() for completion in completions}) == 4


def test_default_model_has_the_fewest_steps(weights: Path, tmp_path: Path) -> None:
    for name, options in (("a.png", []), ("b.png", ["--model", "colour"])):
        assert run_command("sample", tmp_path / name, "--weights", weights, "-n", 1, *options) == 0
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_complete_reads_pipes_and_standard_input(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = encode(random_picture(GREY))
    Path("given.png").write_bytes(picture)
    options = ["--rows", 3, "-n", 1, "--weights", weights, "--model", "tiny"]
    assert run_command("complete", "given.png", "a.png", *options) == 0
    reading, writing = os.pipe()
    try:
        os.write(writing, picture)
        os.close(writing)
        assert run_command("complete", f"/dev/fd/{reading}", "b.png", *options) == 0
    finally:
        os.close(reading)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(picture)))
    assert run_command("complete", "-", "c.png", *options) == 0
    drawn = {Path(name).read_bytes() for name in ("a.png", "b.png", "c.png")}
    assert len(drawn) == 1
    monkeypatch.setattr(sys, "stdin", None)
    assert run_command("complete", "-", "d.png", *options) == 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_complete_fits_pictures_that_are_too_large_to_upload(
    kind: str, weights: Path, tmp_path: Path
) -> None:
    large = Picture.new("L", (4200, 4200), 99)  # over both limits on the pixels of an upload
    large.save("large", kind)
    options = ["--rows", 3, "-n", 1, "--weights", weights, "--model", "tiny", "--scale", 1]
    assert run_command("complete", "large", "a.png", *options) == 0
    assert (cells(Path("a.png"), 1)[0][:3] == 99).all()


def test_complete_lifts_the_size_limit_of_pillow(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Picture, "MAX_IMAGE_PIXELS", 10)
    random_picture(GREY).save("given.png")  # 30 pixels, more than twice the limit
    options = ["--rows", 3, "-n", 1, "--weights", weights, "--model", "tiny"]
    assert run_command("complete", "given.png", "a.png", *options) == 0
    assert Picture.MAX_IMAGE_PIXELS == 10
