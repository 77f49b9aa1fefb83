"""What a training run works on: data, network and folder, chosen as their user names them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scanline.model.config import PRESETS
from scanline.model.data.published import Dataset
from scanline.model.recipe import TrainingConfig
from scanline.model.runs import Run, by_heart, choose_network, run_folder, test_data, training_data
from tests.conftest import tiny_config
from tests.published import hide_other_data, write_cifar, write_mnist
from tests.service_fixtures import save_tiny

test_data.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for j in range(25):
        path = tmp_path / "pictures" / "ab"[j % 2] / f"{j:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 7), (10 * j, 0, 0)).save(path)
    return tmp_path / "pictures"


def of_shape(*shape: int, classes: tuple[str, ...] = ()) -> Dataset:
    return Dataset("images", np.zeros((1, *shape), np.uint8), None, classes)


def test_at_most_a_tenth_of_a_folder_is_held_out(pictures: Path) -> None:
    def sizes(hold_out: int) -> tuple[int, int]:
        data, validation = training_data(None, pictures, 8, False, hold_out, None, False)
        assert data.images.shape[1:] == (8, 8, 3)
        assert data.classes == ("a", "b")
        return len(data), 0 if validation is None else len(validation)

    assert sizes(1000) == (23, 2)
    assert sizes(1) == (24, 1)
    assert sizes(0) == (25, 0)


def test_a_data_set_is_trained_on_without_its_test_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "mnist")
    for name in ("mnist", "mnist-paper"):
        data, validation = training_data(name, None, None, False, 2, tmp_path, False)
        assert validation is not None
        assert (len(data), len(validation)) == (4, 2)
    for dataset, images in ((None, None), ("mnist", tmp_path)):
        with pytest.raises(ValueError, match="say what to train on"):
            training_data(dataset, images, None, False, 0, tmp_path, False)
    with pytest.raises(ValueError, match="there is no 'digits'; there are mnist"):
        training_data("digits", None, None, False, 0, tmp_path, False)


def test_a_model_is_measured_on_a_folder_or_the_test_set_of_its_classes(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_other_data(monkeypatch)
    write_mnist(tmp_path / "mnist")
    write_cifar(tmp_path / "cifar10")
    grey, colour = tiny_config(), tiny_config(channels=3)
    digits = PRESETS["mnist"]
    assert test_data(grey, None, pictures, None, False).images.shape == (25, 5, 4, 1)
    assert test_data(colour, None, pictures, None, False).images.shape == (25, 5, 4, 3)
    assert test_data(digits, None, None, tmp_path, False).images.shape[1:] == (28, 28, 1)
    photographs = test_data(PRESETS["cifar10"], None, None, tmp_path, False)
    assert photographs.images.shape[1:] == (32, 32, 3)
    for own in (replace(digits, classes=()), replace(digits, classes=("cat", "dog"))):
        with pytest.raises(ValueError, match="say what to measure on"):
            test_data(own, None, None, tmp_path, False)
    assert test_data(colour, "mnist", None, tmp_path, False).images.shape[1:] == (28, 28, 1)


def test_a_network_is_a_preset_or_the_nearest_to_the_data() -> None:
    assert choose_network("cifar10-paper", of_shape(32, 32, 3)) == PRESETS["cifar10-paper"]
    grey = choose_network(None, of_shape(9, 7, 1, classes=("a", "b")))
    assert (grey.height, grey.width, grey.channels, grey.classes) == (9, 7, 1, ("a", "b"))
    assert (grey.d_model, grey.head) == (PRESETS["mnist"].d_model, PRESETS["mnist"].head)
    colour = choose_network(None, of_shape(9, 7, 3))
    assert (colour.channels, colour.head, colour.n_layers) == (3, PRESETS["cifar10"].head, 4)
    changed = choose_network("mnist", of_shape(28, 28, 1), layers=3, width=64, heads=2)
    assert (changed.n_layers, changed.d_model, changed.d_ff, changed.n_heads) == (3, 64, 256, 2)


def test_a_network_that_starts_from_a_checkpoint_has_its_sizes(tmp_path: Path) -> None:
    small, path = tiny_config(), save_tiny(tmp_path, config=tiny_config())
    begun = choose_network("mnist", of_shape(28, 28, 1), start_from=path)
    assert (begun.n_layers, begun.d_model, begun.d_ff) == (
        small.n_layers,
        small.d_model,
        small.d_ff,
    )
    assert begun.classes == PRESETS["mnist"].classes
    deeper = choose_network("mnist", of_shape(28, 28, 1), layers=5, start_from=path)
    assert deeper == replace(begun, n_layers=5)


def test_a_run_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder(None, "mnist", None, resume=False) == Path("runs/mnist")
    assert run_folder(None, None, Path("my/cats"), resume=False) == Path("runs/cats")
    assert run_folder(None, None, Path(), resume=False) == Path("runs") / tmp_path.name
    assert run_folder(Path("here"), "mnist", None, resume=False) == Path("here")
    with pytest.raises(ValueError, match="no run to resume in here"):
        run_folder(Path("here"), "mnist", None, resume=True)
    Path("here").mkdir()
    Path("here/training.pt").touch()
    assert run_folder(Path("here"), "mnist", None, resume=True) == Path("here")
    with pytest.raises(ValueError, match="add --resume"):
        run_folder(Path("here"), "mnist", None, resume=False)


def test_a_run_is_resumed_or_begun_with_weights_not_both(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave one of them out"):
        Run(
            network=tiny_config(), recipe=TrainingConfig(steps=1), folder=tmp_path,
            resume=True, start_from=tmp_path / "a.safetensors",
        )  # fmt: skip


def test_a_run_that_learns_by_heart_says_where_it_was_best() -> None:
    def validated(*bits: float) -> list[dict[str, float]]:
        return [{"step": 1000 * (j + 1), "bits_per_dim": one} for j, one in enumerate(bits)]

    assert by_heart([]) == by_heart(validated(3.0)) == by_heart(validated(1.5, 1.4, 1.44)) == ""
    said = by_heart(validated(1.5, 1.4, 1.46, 2.0))
    assert "cost 1.400 bits/dim at step 2,000, and costs 2.000 now" in said
    assert said.endswith("--steps 2000")
