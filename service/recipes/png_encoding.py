"""Encoding of drawn images as PNG files that carry their recipe."""

from __future__ import annotations

from dataclasses import fields

from scanline.model.config import NO_LABEL
from scanline.model.noise import RANDOM
from scanline.model.sampling import SamplingOptions
from scanline.service import __version__
from scanline.service.engine.generation import Generation
from scanline.service.engine.image import FinishReason, Image
from scanline.service.images import to_grid, to_png
from scanline.service.recipes.recipe import Recipe, embed_recipe


def encode_image(generation: Generation, image: Image) -> bytes:
    """Encode a finished image; one that was cancelled gets no recipe."""
    config = generation.config
    png = to_png(image.read(0, config.pixels), config)
    return embed(png, generation, image)


def encode_grid(generation: Generation, scale: int = 1) -> bytes:
    """Encode a complete generation as one PNG, several images as a grid."""
    config, images = generation.config, generation.images
    if len(images) == scale == 1:
        return encode_image(generation, images[0])
    pixels = [image.read(0, config.pixels) for image in images]
    image = images[0] if len(images) == 1 else None
    return embed(to_grid(pixels, config, scale), generation, image, scale)


def embed(png: bytes, generation: Generation, image: Image | None, scale: int = 1) -> bytes:
    """Add the recipe to a PNG file of one image, or of the whole generation if it is None."""
    recipe = _recipe(generation, image, scale)
    return png if recipe is None else embed_recipe(png, recipe, generation.config)


def _recipe(generation: Generation, image: Image | None, scale: int) -> Recipe | None:
    provenance, spec, config = generation.provenance, generation.spec, generation.config
    if provenance is None or (image and image.finish_reason is not FinishReason.LENGTH):
        return None
    sampling = spec.sampling
    label = sampling.label if image is None else image.label
    name = None if label == NO_LABEL else config.classes[label]
    options = {field.name: getattr(sampling, field.name) for field in fields(SamplingOptions)}
    options["label"] = RANDOM if image is None and sampling.random_label else name
    return Recipe(
        model=generation.model,
        weights=provenance.weights,
        precision=provenance.precision,
        arithmetic=provenance.arithmetic,
        seed=spec.seed if image is None else image.seed,
        n=spec.n if image is None else 1,
        given=spec.given_digest,
        scale=scale,
        version=__version__,
        **options,
    )
