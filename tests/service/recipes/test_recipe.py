"""Tests of recipes in PNG files: writing, strict reading, and hostile files."""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import fields
from typing import Any

import pytest
from PIL import Image as Picture
from pydantic import ValidationError

from scanline.model.images import ImageError
from scanline.model.noise import MAX_SEED
from scanline.model.sampling import SamplingOptions
from scanline.service.recipes.recipe import MAX_RECIPE_BYTES, Recipe, embed_recipe, read_recipe
from scanline.service.recipes.verification import options_of
from tests.service.fixtures import GREY, encode, random_picture

FIELDS: dict[str, Any] = {
    "format": 1, "model": "grey", "weights": "0f" * 32, "precision": None, "arithmetic": 1,
    "seed": MAX_SEED, "n": 1, "label": "one", "temperature": 0.3, "guidance": 1.5, "top_p": 0.9,
    "particles": 1, "given": None, "scale": 1, "version": "0.1.0",
}  # fmt: skip
# A recipe of version 0.1.0. Do not change it: pictures of that version must stay verifiable.
OLD_RECIPE = (
    '{"format":1,"model":"mnist","weights":"a09d9b0c9df428954c275d425b4b6da5aee05381ffe4a89aff23e1a'
    '36b5680d6","precision":"int8","arithmetic":1,"seed":0,"n":64,"label":"random",'
    '"temperature":1.0,"guidance":1.75,"top_p":0.98,"particles":1,"given":null,"scale":4,'
    '"version":"0.1.0"}'
)
PNG = encode(random_picture())


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_text(text: bytes, kind: bytes = b"tEXt") -> bytes:
    """Return a PNG with a chunk of the recipe's keyword."""
    return PNG[:33] + chunk(kind, b"scanline\0" + text) + PNG[33:]


def test_recipe_is_read_back_and_pixels_stay() -> None:
    recipe = Recipe(**FIELDS)
    file = embed_recipe(PNG, recipe, GREY)
    assert read_recipe(file) == recipe
    with Picture.open(io.BytesIO(file)) as after, Picture.open(io.BytesIO(PNG)) as before:
        assert after.tobytes() == before.tobytes()
        assert json.loads(after.info["scanline"]) == FIELDS
        assert after.info["parameters"] == (
            f"one\nSteps: 30, Sampler: Scanline, CFG scale: 1.5, Seed: {MAX_SEED}, Size: 5x6, "
            "Model hash: 0f0f0f0f0f, Model: grey, Temperature: 0.3, Top p: 0.9, Particles: 1, "
            "Batch size: 1, Version: scanline 0.1.0"
        )


@pytest.mark.parametrize("label", [None, "ein Fröschlein", "蛙", "two\nlines", '"scale":1'])
def test_any_class_name_is_kept(label: str | None) -> None:
    recipe = Recipe(**FIELDS | {"label": label})
    file = embed_recipe(PNG, recipe, GREY)
    assert read_recipe(file) == recipe
    with Picture.open(io.BytesIO(file)) as picture:
        shown = picture.info["parameters"].split("\n")
    assert shown[:-1] == ([] if label is None else [" ".join(label.split())])


def test_every_sampling_option_is_in_the_recipe() -> None:
    options = {field.name: FIELDS[field.name] for field in fields(SamplingOptions)}
    assert options_of(Recipe(**FIELDS)) == SamplingOptions(**options)


def test_recipe_of_an_earlier_version_is_read() -> None:
    recipe = read_recipe(with_text(OLD_RECIPE.encode()))
    assert recipe is not None
    assert options_of(recipe) == SamplingOptions(label="random", guidance=1.75, top_p=0.98)


def test_picture_without_recipe() -> None:
    assert read_recipe(PNG) is None
    assert read_recipe(encode(random_picture(), "JPEG")) is None
    assert read_recipe(b"") is None


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
def test_compressed_text_is_not_inflated(kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compress(json.dumps(FIELDS).encode())
    monkeypatch.setattr(zlib, "decompress", None)
    monkeypatch.setattr(zlib, "decompressobj", None)
    header = b"\0" if kind == b"zTXt" else b"\1\0\0\0"
    assert read_recipe(with_text(header + bomb, kind)) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"format": 2}, "format"),
        ({"weights": "0F" * 32}, "weights"),
        ({"weights": "0f" * 32 + "\n"}, "weights"),
        ({"precision": "int4"}, "precision"),
        ({"arithmetic": 0}, "arithmetic"),
        ({"seed": -1}, "seed"),
        ({"seed": MAX_SEED + 1}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": True}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 2**33}, "n"),
        ({"label": 3}, "label"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"guidance": float("inf")}, "guidance"),
        ({"top_p": 0}, "top_p"),
        ({"particles": 65}, "particles"),
        ({"given": "x" * 64}, "given"),
        ({"scale": 2049}, "scale"),
        ({"version": "9" * 101}, "version"),
        ({"caller": "me"}, "caller"),
    ],
)
def test_value_out_of_bounds_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ImageError, match=f"cannot be read: {reason}: ") as caught:
        read_recipe(with_text(json.dumps(FIELDS | changed).encode()))
    assert caught.value.code == "invalid_recipe"
    with pytest.raises(ValidationError):
        Recipe(**FIELDS | changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not a JSON object"),
        (b"#draw?seed=1", "not a JSON object"),
        (b"\xff\xfe", "not a JSON object"),
        (json.dumps(FIELDS).replace("one", r"\ud800").encode(), "not a JSON object"),
        (b"[" * 10_000, "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "model"),
        (json.dumps(FIELDS | {"label": "x" * MAX_RECIPE_BYTES}).encode(), "bytes, more than"),
        (json.dumps(FIELDS).replace(str(MAX_SEED), "9" * 5000).encode(), "not a JSON object"),
    ],
)
def test_damaged_recipe_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        read_recipe(with_text(text))
    assert len(str(caught.value)) < 300


def test_several_recipes_are_refused() -> None:
    file = embed_recipe(PNG, Recipe(**FIELDS), GREY)
    with pytest.raises(ImageError, match="several"):
        read_recipe(embed_recipe(file, Recipe(**FIELDS | {"seed": 2}), GREY))


def test_wrong_checksum_is_refused() -> None:
    file = bytearray(with_text(json.dumps(FIELDS).encode()))
    file[file.index(b'"seed"') + 9] ^= 1
    with pytest.raises(ImageError, match="checksum"):
        read_recipe(bytes(file))


def test_cut_off_recipe_is_none() -> None:
    file = with_text(json.dumps(FIELDS).encode())
    assert all(read_recipe(file[:length]) is None for length in range(file.index(b"IDAT") - 8))
