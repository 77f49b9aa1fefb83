"""Recipe of a picture, stored in its PNG file: all that is needed to draw it again.

A file has two uncompressed text chunks: ``scanline`` with the recipe as JSON, and ``parameters``
with the same facts as one line per picture, in the form that other image tools display. Nothing
in them depends on the client.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scanline.kernels.native.abi import Precision
from scanline.model.config import MAX_GUIDANCE, ModelConfig
from scanline.model.images import ImageError
from scanline.model.noise import MAX_SEED
from scanline.model.particles import MAX_PARTICLES
from scanline.model.png import SIGNATURE, iterate_chunks, png_chunk
from scanline.model.sampling import MAX_TEMPERATURE
from scanline.service.upload_limits import MAX_PARTS

# A new field needs a default that means the earlier behaviour, because older files lack it. Older
# servers refuse files that have it. Raise FORMAT only when a field changes its meaning: files of
# another format are refused.
FORMAT = 1
KEYWORD = b"scanline"
MAX_RECIPE_BYTES = 16_384  # some 400 are usual; the names of the model and the class have no limit
HEADER_END = 33  # length of a PNG's signature and IHDR chunk

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Recipe(BaseModel):
    """Parameters that redraw the picture of a PNG file: model, weights, seed and options."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "format": 1, "model": "mnist", "weights": "5f2c" * 16, "precision": "int8",
                    "arithmetic": 1, "seed": 7, "n": 1, "label": "3", "temperature": 1.0,
                    "guidance": 2.0, "top_p": 1.0, "particles": 1, "given": "0a1b" * 16,
                    "scale": 1, "version": "0.1.0",
                }
            ]
        },
    )  # fmt: skip

    format: Annotated[
        int, Field(ge=FORMAT, le=FORMAT, description="Version of the recipe's format.")
    ] = FORMAT
    model: str
    weights: Annotated[Digest, Field(description="SHA-256 of the model's config and weights.")]
    precision: Annotated[
        Precision | None,
        Field(description="Products chosen by the weights; null for the default."),
    ]
    arithmetic: Annotated[
        int | None,
        Field(ge=1, description="As in `/v1/models`: null if the bytes depend on the machine."),
    ]
    seed: Annotated[int, Field(ge=0, le=MAX_SEED, description="Seed of the first image.")]
    n: Annotated[int, Field(ge=1, le=2**32, description="Number of images in the grid.")] = 1
    label: Annotated[str | None, Field(description="The class, or `random` in a grid.")]
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
    guidance: Annotated[float, Field(ge=0, le=MAX_GUIDANCE)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    particles: Annotated[int, Field(ge=1, le=MAX_PARTICLES)]
    given: Annotated[
        Digest | None,
        Field(description="SHA-256 of a completion's mask and known pixels; null for a sample."),
    ]
    scale: Annotated[int, Field(ge=1, le=2048, description="Side of each pixel in the file.")]
    version: Annotated[str, Field(max_length=100, description="Version of Scanline.")]

    def to_parameters(self, config: ModelConfig) -> str:
        """Return the recipe in the form that other image tools display as generation parameters.

        It is the prompt, here the class, and then one line of names and values.
        """
        fields: dict[str, object] = {
            "Steps": config.steps,
            "Sampler": "Scanline",
            "CFG scale": f"{self.guidance:g}",
            "Seed": self.seed,
            "Size": f"{config.width}x{config.height}",
            "Model hash": self.weights[:10],
            "Model": _one_line(self.model),
            "Temperature": f"{self.temperature:g}",
            "Top p": f"{self.top_p:g}",
            "Particles": self.particles,
            "Batch size": self.n,
            "Version": f"scanline {self.version}",
        }
        line = ", ".join(f"{name}: {value}" for name, value in fields.items())
        return line if self.label is None else f"{_one_line(self.label)}\n{line}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _text_chunk(keyword: bytes, text: str) -> bytes:
    """Return a tEXt chunk, or an uncompressed iTXt chunk if the text is not Latin-1."""
    try:
        kind, data = b"tEXt", keyword + b"\0" + text.encode("latin-1")
    except UnicodeEncodeError:
        kind, data = b"iTXt", keyword + b"\0\0\0\0\0" + text.encode()
    return png_chunk(kind, data)


def embed_recipe(png: bytes, recipe: Recipe, config: ModelConfig) -> bytes:
    """Return a PNG file of this project with a recipe added, as JSON and as parameters."""
    text = json.dumps(recipe.model_dump(), separators=(",", ":"))
    parameters = _text_chunk(b"parameters", recipe.to_parameters(config))
    return png[:HEADER_END] + _text_chunk(KEYWORD, text) + parameters + png[HEADER_END:]


def read_recipe(file: bytes) -> Recipe | None:
    """Read the recipe of a PNG file; return None if it has none.

    Only an uncompressed ``tEXt`` chunk is a recipe, so nothing is ever inflated.

    Raises:
        ImageError: If the recipe is damaged, too large, sent twice, or out of bounds.
    """
    texts = list(islice(_recipe_texts(file), 2))
    if not texts:
        return None
    if len(texts) > 1:
        raise _invalid("there are several")
    (text,) = texts
    if len(text) > MAX_RECIPE_BYTES:
        raise _invalid(f"it has {len(text):,} bytes, more than {MAX_RECIPE_BYTES:,}")
    try:
        return Recipe.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])[:40]
        raise _invalid(
            f"{where}: {problem['msg']}" if where else "it is not a JSON object"
        ) from None


def _recipe_texts(file: bytes) -> Iterator[bytes]:
    """Yield the text of each chunk with the recipe's keyword."""
    if not file.startswith(SIGNATURE):
        return
    keyword = KEYWORD + b"\0"
    for kind, start, end in islice(iterate_chunks(file), MAX_PARTS):
        if kind == b"tEXt" and file.startswith(keyword, start):
            if file[end : end + 4] != struct.pack(">I", zlib.crc32(file[start - 4 : end])):
                raise _invalid("its checksum is wrong")
            yield file[start + len(keyword) : end]


def _invalid(reason: str) -> ImageError:
    return ImageError(
        f"the recipe in the file cannot be read: {reason}; send the file as it was saved",
        code="invalid_recipe",
    )
