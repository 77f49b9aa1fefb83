"""Tests of the choice of the network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scanline.model.checkpoint import CheckpointError
from scanline.model.config import PRESETS
from scanline.model.data.dataset import Dataset
from scanline.model.training.network_choice import (
    NetworkOverrides,
    check_is_run_of,
    choose_network,
)
from tests.service.fixtures import save_tiny


def of_shape(*shape: int, classes: tuple[str, ...] = ()) -> Dataset:
    return Dataset("images", np.zeros((1, *shape), np.uint8), None, classes)


def test_network_is_preset_or_closest_to_data() -> None:
    assert choose_network("cifar10-paper", of_shape(32, 32, 3)) == PRESETS["cifar10-paper"]
    grey = choose_network(None, of_shape(9, 7, 1, classes=("a", "b")))
    assert (grey.height, grey.width, grey.channels, grey.classes) == (9, 7, 1, ("a", "b"))
    assert (grey.d_model, grey.head) == (PRESETS["mnist"].d_model, PRESETS["mnist"].head)
    colour = choose_network(None, of_shape(9, 7, 3))
    assert (colour.channels, colour.head, colour.n_layers) == (3, PRESETS["cifar10"].head, 4)
    changed = choose_network(
        "mnist", of_shape(28, 28, 1), NetworkOverrides(layers=3, width=64, heads=2)
    )
    assert (changed.n_layers, changed.d_model, changed.d_ff, changed.n_heads) == (3, 64, 256, 2)
    wide = NetworkOverrides(width=64, feed_forward=100).apply(PRESETS["mnist"])
    assert (wide.d_model, wide.d_ff) == (64, 100)


def test_network_has_sizes_of_checkpoint_to_start_from(tmp_path: Path) -> None:
    small = replace(PRESETS["mnist"], n_layers=2, n_heads=2, d_model=16, d_ff=24)
    path = save_tiny(tmp_path, config=small)
    resumed = choose_network("mnist", of_shape(28, 28, 1), start_from=path)
    assert (resumed.n_layers, resumed.d_model, resumed.d_ff) == (
        small.n_layers,
        small.d_model,
        small.d_ff,
    )
    assert resumed.classes == PRESETS["mnist"].classes
    deeper = choose_network(
        "mnist", of_shape(28, 28, 1), NetworkOverrides(layers=5), start_from=path
    )
    assert deeper == replace(resumed, n_layers=5)
    wider = NetworkOverrides(feed_forward=30)
    grown = choose_network("mnist", of_shape(28, 28, 1), wider, start_from=path)
    assert grown == replace(resumed, d_ff=30)
    with pytest.raises(CheckpointError, match=r"another network \(d_ff\); start from"):
        choose_network(
            "mnist", of_shape(28, 28, 1), NetworkOverrides(feed_forward=23), start_from=path
        )
    folder = of_shape(28, 28, 1, classes=("cats", "dogs"))
    message = r"has the classes 0, 1, 2, .*, 9, but the images have the classes cats, dogs: train"
    with pytest.raises(CheckpointError, match=message):
        choose_network(None, folder, start_from=path)
    with pytest.raises(CheckpointError, match="but the images have no classes: train on images"):
        choose_network(None, of_shape(28, 28, 1), start_from=path)
    relu = replace(small, feature_map="relu")
    other = choose_network(
        "mnist", of_shape(28, 28, 1), start_from=save_tiny(tmp_path, "b", config=relu)
    )
    assert (other.attention, other.feature_map) == ("linear", "relu")
    softmax = replace(small, attention="softmax")
    other = choose_network(
        "mnist", of_shape(28, 28, 1), start_from=save_tiny(tmp_path, "c", config=softmax)
    )
    assert other.attention == "softmax"
    with pytest.raises(CheckpointError, match=r"another network \(d_model\); start from"):
        choose_network("mnist", of_shape(28, 28, 1), NetworkOverrides(width=24), start_from=path)


def test_resumed_run_must_be_of_the_preset() -> None:
    older = replace(PRESETS["mnist"], short_conv="none", n_layers=2)  # as an older preset
    check_is_run_of("mnist", older)
    check_is_run_of(None, older)
    with pytest.raises(ValueError, match=r"than mnist-paper \(classes, input, order, head,"):
        check_is_run_of("mnist-paper", older)
    with pytest.raises(ValueError, match=r"than cifar10-paper \(height, width, channels\): name"):
        check_is_run_of("cifar10-paper", PRESETS["mnist-paper"])
    clothes = replace(older, classes=tuple("abcdefghij"))
    with pytest.raises(ValueError, match=r"network than mnist \(classes\): name the preset"):
        check_is_run_of("mnist", clothes)
