"""Verification of a picture: comparison of a PNG file with the picture that its recipe draws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import ModelConfig
from scanline.model.sampling import SamplingOptions
from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.provenance import Provenance
from scanline.service.images import OpenImage, arrange_grid, grid_size, image_to_png
from scanline.service.recipes.recipe import Recipe, read_recipe

CHANGED = (255, 0, 80)  # colour of changed pixels
MIN_CHANGES_SIDE = 280  # pixels of the picture of the changes

# Values of a picture, uint8 ``[T, C]``, and which of its pixels are known, bool ``[T]``.
KnownPixels = tuple[NDArray[np.uint8], NDArray[np.bool_]]
ReadSource = Callable[[ModelConfig], KnownPixels]


class Verdict(StrEnum):
    """Result of a verification."""

    SAME = "same"
    EDITED = "edited"
    RESIZED = "resized"
    OTHER_WEIGHTS = "other_weights"
    OTHER_ARITHMETIC = "other_arithmetic"
    SOURCE_MISSING = "source_missing"
    OTHER_SOURCE = "other_source"
    NO_RECIPE = "no_recipe"


class Saved(NamedTuple):
    """Picture or grid in a file, with one value per pixel of the model.

    It is much smaller than an enlarged file, so that many can wait for the engine.

    Attributes:
        values: RGBA of the first pixel of each block, uint8 ``[H, W, 4]``.
        mixed: Which blocks have several colours, bool ``[H, W]``.
        margin: Whether the margin around a single image is as it was drawn.
    """

    values: NDArray[np.uint8]
    mixed: NDArray[np.bool_]
    margin: bool


@dataclass(frozen=True)
class Verification:
    """Verdict on a picture.

    Attributes:
        verdict: The result.
        message: The result in a sentence.
        recipe: The recipe in the file, None if it has none.
        changed: Which pixels of the picture or grid differ from the drawn ones, bool ``[H, W]``;
            None if nothing was drawn.
        changes: A PNG that shows where, None if nothing differs.
    """

    verdict: Verdict
    message: str
    recipe: Recipe | None
    changed: NDArray[np.bool_] | None = None
    changes: bytes | None = None


def read_picture(file: BinaryIO, open_image: OpenImage) -> tuple[Recipe | None, NDArray[np.uint8]]:
    """Read a file to verify: its recipe, and its pixels as RGBA, uint8 ``[H, W, 4]``.

    Raises:
        ImageError: If the file is not a valid image, or its recipe cannot be read.
    """
    image = open_image(file, "image", None, None)
    file.seek(0)
    recipe = read_recipe(file.read())
    return recipe, np.asarray(image.convert("RGBA"), np.uint8)


def options_of(recipe: Recipe) -> SamplingOptions:
    """Return the sampling options of a recipe."""
    return SamplingOptions(
        **{one.name: getattr(recipe, one.name) for one in fields(SamplingOptions)}
    )


def no_recipe() -> Verification:
    """Return the verdict on a picture without a recipe."""
    message = "The file does not say how it was drawn: it has no recipe."
    return Verification(Verdict.NO_RECIPE, message, None)


def other_weights(recipe: Recipe, here: str | None) -> Verification:
    """Return the verdict on a picture whose weights are not available.

    Args:
        recipe: The picture's recipe.
        here: Digest of the model of the same name; None if there is no such model.
    """
    if here is None:
        message = f"It was drawn by the model {recipe.model[:100]!a}, which is not available here."
    else:
        message = (
            f"It was drawn with other weights: the digest of {recipe.model[:100]!a} here begins "
            f"with {here[:10]}, in the picture with {recipe.weights[:10]}."
        )
    return Verification(Verdict.OTHER_WEIGHTS, message, recipe)


def scale_down(
    recipe: Recipe, pixels: NDArray[np.uint8], config: ModelConfig
) -> Saved | Verification:
    """Undo the enlargement of a file, or return the verdict if it has another size than saved.

    A single image may have black margins of the same width on both sides, as OpenAI's sizes have.
    """
    rows, columns = grid_size(recipe.n, config)
    scale = recipe.scale
    H, W = rows * scale, columns * scale
    height, width = pixels.shape[:2]
    if (height, width) != (H, W) and (recipe.n > 1 or height < H or width < W):
        message = (
            f"The picture was resized or cropped: it has {width} × {height} pixels, and was saved "
            f"with {W} × {H}."
        )
        return Verification(Verdict.RESIZED, message, recipe)
    top, left = (height - H) // 2, (width - W) // 2
    outside = np.ones((height, width), bool)
    outside[top : top + H, left : left + W] = False
    margin = bool((pixels[outside] == (0, 0, 0, 255)).all())
    blocks = pixels[top : top + H, left : left + W].reshape(rows, scale, columns, scale, 4)
    values = blocks[:, 0, :, 0].copy()
    return Saved(values, (blocks != values[:, None, :, None]).any(axis=(1, 3, 4)), margin)


def add_given(
    recipe: Recipe,
    saved: Saved,
    config: ModelConfig,
    spec: GenerationSpec,
    read_source: ReadSource | None,
) -> GenerationSpec | Verification:
    """Add the known pixels of a completion to its spec, or return the verdict if they are missing.

    The finished picture contains its known pixels, but not which they are. The usual case, that
    the first rows are known, is found by trying each number of rows. All pictures of a grid have
    the same known pixels.

    Args:
        recipe: The completion's recipe.
        saved: The finished picture or grid.
        config: The model's config.
        spec: The spec without known pixels.
        read_source: Reads the picture that was completed; None if it was not given.
    """
    candidates: Iterable[KnownPixels]
    if read_source is not None:
        candidates, verdict = [read_source(config)], Verdict.OTHER_SOURCE
        message = (
            "Another picture was completed, or another part of it was marked: check the source and "
            "its mask, number of known rows and fit."
        )
    else:
        first = saved.values[: config.height, : config.width, : config.channels]
        canvas, pixels = first.reshape(config.pixels, config.channels), np.arange(config.pixels)
        candidates = ((canvas, pixels < rows * config.width) for rows in range(1, config.height))
        verdict = Verdict.SOURCE_MISSING
        message = (
            "This picture is a completion. To check it, the original picture is needed, with the "
            "same part marked."
        )
    for canvas, known in candidates:
        completion = replace(spec, canvas=canvas, known=known)
        if completion.given_digest == recipe.given:
            return completion
    return Verification(verdict, message, recipe)


def compare(
    recipe: Recipe,
    saved: Saved,
    images: Sequence[NDArray[np.uint8]],
    config: ModelConfig,
    here: Provenance,
) -> Verification:
    """Compare a picture with the images that its recipe draws here.

    Args:
        recipe: The recipe in the file.
        saved: The picture in the file.
        images: The drawn images, uint8 ``[T, C]``.
        config: The model's config.
        here: Provenance of the drawn images.
    """
    drawn = arrange_grid(images, config)
    rgba = np.full((*drawn.shape[:2], 4), 255, np.uint8)
    rgba[..., :3] = drawn
    changed = saved.mixed | (saved.values != rgba).any(-1)
    count = int(changed.sum())
    if not count and saved.margin:
        return Verification(Verdict.SAME, "Same picture, to the pixel.", recipe, changed)
    changes = _picture_of_changes(saved.values[..., :3], changed)
    if here.arithmetic is None or (here.arithmetic, here.precision) != (
        recipe.arithmetic, recipe.precision,
    ):  # fmt: skip
        message = (
            f"{count:,} of {changed.size:,} pixels differ, perhaps because the picture was drawn "
            f"with other arithmetic ({_arithmetic(recipe)}; here {_arithmetic(here)})."
        )
        return Verification(Verdict.OTHER_ARITHMETIC, message, recipe, changed, changes)
    parts = []
    if count:
        y, x = np.argwhere(changed)[0]
        noun = "pixel was" if count == 1 else "pixels were"
        parts.append(
            f"{count:,} of {changed.size:,} {noun} changed, the first in row {y + 1}, "
            f"column {x + 1}"
        )
    if not saved.margin:
        parts.append("the margin was changed")
    return Verification(Verdict.EDITED, f"Edited: {'; '.join(parts)}.", recipe, changed, changes)


def _arithmetic(one: Recipe | Provenance) -> str:
    """Describe the arithmetic of a recipe or of a model."""
    if one.arithmetic is None:
        return "one that depends on the machine"
    return f"version {one.arithmetic}, {one.precision or 'default'} products"


def _picture_of_changes(given: NDArray[np.uint8], changed: NDArray[np.bool_]) -> bytes:
    """Encode a picture, uint8 ``[H, W, 3]``, dimmed and with its changed pixels in red."""
    shown = np.where(changed[..., None], np.array(CHANGED, np.uint8), given // 3)
    scale = max(1, MIN_CHANGES_SIDE // max(changed.shape))
    return image_to_png(Image.fromarray(shown.astype(np.uint8)), scale)
