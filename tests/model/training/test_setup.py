"""Set-up of training runs from a user's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.model.training.datasets import DataSource
from scanline.model.training.network_choice import NetworkOverrides
from scanline.model.training.setup import RunOptions, prepare_run
from tests.service.fixtures import GREY, random_picture

SETTINGS = {"steps": 1, "batch": 4}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Twelve images in two classes."""
    folder = tmp_path / "images"
    for j in range(12):
        path = folder / f"class{j % 2}" / f"{j}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        random_picture(GREY, j).save(path)
    return folder


def test_a_new_run_has_the_settings_the_network_and_the_data(images: Path, tmp_path: Path) -> None:
    options = RunOptions(
        source=DataSource(images=images), size=8, grey=True, out=tmp_path / "run",
        settings=SETTINGS, hold_out=3,
        overrides=NetworkOverrides(layers=1, width=8, heads=2),
    )  # fmt: skip
    run = prepare_run(options)
    assert (run.folder, run.resume, run.start_from) == (tmp_path / "run", False, None)
    assert (run.training_config.steps, run.training_config.batch) == (1, 4)
    network = run.network
    assert (network.height, network.width, network.channels) == (8, 8, 1)
    assert (network.n_layers, network.d_model, network.d_ff, network.n_heads) == (1, 8, 32, 2)
    assert network.classes == ("class0", "class1")
    assert run.validation is not None
    assert (len(run.data), len(run.validation)) == (9, 3)


def test_options_are_checked_before_the_images_are_read(tmp_path: Path) -> None:
    options = RunOptions(
        source=DataSource(images=tmp_path / "missing"),
        out=tmp_path / "run",
        settings=SETTINGS,
        processes=3,
    )
    with pytest.raises(ValueError, match="cannot be divided among 3"):
        prepare_run(options)
