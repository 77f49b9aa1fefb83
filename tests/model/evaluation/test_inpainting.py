"""Inpainting masks and results."""

from __future__ import annotations

import numpy as np
import pytest

from scanline.model.api import generate
from scanline.model.checkpoint import Checkpoint
from scanline.model.data.dataset import Dataset
from scanline.model.evaluation.classifier import (
    accuracy,
    train,
)
from scanline.model.evaluation.inpainting import (
    InpaintingResult,
    evaluate_inpainting,
    inpainting_masks,
)
from tests.model.evaluation.fixtures import CONFIG, CPU, bars
from tests.service.fixtures import GREY, tiny_model

pytestmark = pytest.mark.usefixtures("cache_folder")  # for cached classifiers


def test_inpainting_masks() -> None:
    known = inpainting_masks(28, 28)
    assert (~known["middle"]).sum() == 64
    assert not known["middle"][10:18, 10:18].any()
    assert known["upper half"].sum() == 14 * 28
    assert known["upper half"][14:].all()
    assert known["every other row"][::2].all()


def test_small_images_have_fewer_masks() -> None:
    assert [*inpainting_masks(1, 9)] == []
    assert [*inpainting_masks(9, 1)] == ["upper half", "every other row"]
    assert [*inpainting_masks(9, 9)] == ["middle", "upper half", "every other row"]


def test_inpainting_results() -> None:
    """Images of one colour, so that the squared error is easy to compute."""
    images = np.full((3, GREY.height, GREY.width, 1), 200, np.uint8)
    test = Dataset("same", images, np.zeros(3, np.int64), GREY.classes)
    checkpoint = Checkpoint("tiny", tiny_model())
    reported: list[InpaintingResult] = []
    results = evaluate_inpainting(checkpoint, test, (1, 4), on_result=reported.append)
    assert results == reported
    assert [(one.hole, one.particles) for one in results] == [
        (hole, count) for hole in ("middle", "upper half", "every other row") for count in (1, 4)
    ]
    known = inpainting_masks(GREY.height, GREY.width)["middle"]
    completed = generate(checkpoint, 3, given=images, known=known)
    error = np.square((completed.images[:, ~known] / 255.0) - 200 / 255).mean()
    assert results[0].squared_error == pytest.approx(error)
    assert results[0].class_accuracy is None


def test_inpainting_uses_default_or_given_top_p() -> None:
    data = bars(9, seed=1)
    checkpoint = Checkpoint("tiny", tiny_model(), {"defaults": {"top_p": 0.5}})
    known = inpainting_masks(GREY.height, GREY.width)["middle"]
    by_top_p = {}
    for top_p in (None, 0.5, 1.0):
        result = evaluate_inpainting(checkpoint, data, (1,), top_p=top_p)[0]
        completed = generate(checkpoint, 9, given=data.images, known=known, top_p=top_p or 0.5)
        assert result.bits_per_dim == pytest.approx(completed.bits_per_dim.mean())
        by_top_p[top_p] = result.bits_per_dim
    assert by_top_p[None] == by_top_p[0.5] != by_top_p[1.0]


def test_inpainting_class_accuracy() -> None:
    data = bars(9, seed=1)
    checkpoint, classifier = Checkpoint("tiny", tiny_model()), train(bars(240), CONFIG, CPU)
    results = evaluate_inpainting(checkpoint, data, (4,), classifier=classifier)
    for result in results:
        known = inpainting_masks(GREY.height, GREY.width)[result.hole]
        completed = generate(checkpoint, 9, given=data.images, known=known, particles=4)
        assert (
            result.class_accuracy == (classifier.predict(completed.images)[0] == data.labels).mean()
        )
        assert result.bits_per_dim == pytest.approx(completed.bits_per_dim.mean())
        error = np.square((completed.images / 255.0 - data.images / 255.0)[:, ~known]).mean()
        assert result.squared_error == pytest.approx(error)
    shares = [result.class_accuracy for result in results if result.class_accuracy is not None]
    assert min(shares) < accuracy(classifier, data)
