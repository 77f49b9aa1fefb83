"""``POST /v1/samples`` in every form of reply."""

from __future__ import annotations

import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from scanline.service.engine.generation import GenerationSpec
from tests.service.api.fixtures import CONFIGS, LiveServer, draw_reference, png, values
from tests.service.fixtures import (
    decode_png,
)


@pytest.mark.parametrize("model", CONFIGS)
def test_samples_as_json(api: LiveServer, model: str) -> None:
    config = CONFIGS[model]
    reply = api.samples(model=model, n=3, seed=12)
    assert reply.status_code == 200
    body = reply.json()
    assert body["object"] == "generation"
    assert body["status"] == "finished"
    assert body["model"] == model
    assert (body["width"], body["height"]) == (config.width, config.height)
    assert body["channels"] == config.channels
    assert body["error"] is None
    assert reply.headers["x-generation-id"] == body["id"]
    assert reply.headers["x-seed"] == "12"
    assert body["usage"]["pixels"] == 3 * config.pixels
    assert [i["index"] for i in body["images"]] == [0, 1, 2]
    assert [i["seed"] for i in body["images"]] == [12, 13, 14]
    for image in body["images"]:
        assert image["finish_reason"] == "length"
        assert image["position"] == config.pixels
        assert image["bits_per_dim"] > 0
        expected = draw_reference(config, GenerationSpec(n=3, seed=12), image["index"])
        np.testing.assert_array_equal(png(image, config), expected)
    again = api.client.get(f"/v1/generations/{body['id']}").json()
    assert again == body


def test_values_equal_the_png(api: LiveServer) -> None:
    for model, config in CONFIGS.items():
        pngs = api.samples(model=model, n=2, seed=3).json()["images"]
        lists = api.samples(model=model, n=2, seed=3, output="values").json()["images"]
        for one, other in zip(pngs, lists, strict=True):
            assert "values" not in one
            assert "png" not in other
            np.testing.assert_array_equal(png(one, config), values(other, config))


def test_an_image_of_a_batch_can_be_drawn_again_alone(api: LiveServer) -> None:
    batch = api.samples(n=5, seed=2**64 - 2, label=1).json()["images"]
    assert [i["seed"] for i in batch] == [2**64 - 2, 2**64 - 1, 0, 1, 2]
    for image in batch:
        alone = api.samples(n=1, seed=image["seed"], label="one").json()["images"][0]
        assert alone["png"] == image["png"]
        assert alone["bits_per_dim"] == image["bits_per_dim"]


def test_random_seed_is_in_the_reply(api: LiveServer) -> None:
    first, second = api.samples().json(), api.samples().json()
    seeds = [body["images"][0]["seed"] for body in (first, second)]
    assert seeds[0] != seeds[1]
    assert max(seeds) < 2**32  # short, and exact in JavaScript
    again = api.samples(seed=seeds[0]).json()
    assert again["images"][0]["png"] == first["images"][0]["png"]


def test_label_by_name_and_by_number(api: LiveServer) -> None:
    def drawn(label: object) -> str:
        reply = api.samples(seed=5, label=label)
        assert reply.status_code == 200, reply.text
        picture: str = reply.json()["images"][0]["png"]
        return picture

    frogs = {drawn(label) for label in ("a frog", "A Frog ", "2", 2)}
    assert len(frogs) == 1
    assert len({*frogs, drawn("one"), drawn(0), drawn(None)}) == 4


def test_temperature_0_is_deterministic(api: LiveServer) -> None:
    def drawn(**fields: Any) -> set[tuple[int, ...]]:
        images = api.samples(output="values", **fields).json()["images"]
        return {tuple(image["values"]) for image in images}

    cold = drawn(n=3, seed=1, temperature=0)
    assert len(cold) == 1
    assert drawn(seed=99, temperature=0.0) == cold
    assert drawn(seed=1, temperature=2) != cold


def test_samples_as_png_grid_zip_and_numpy_array(api: LiveServer) -> None:
    for model, config in CONFIGS.items():
        body = {"model": model, "n": 5, "seed": 8}
        images = [png(i, config) for i in api.samples(**body).json()["images"]]
        grid = api.client.post("/v1/samples", json=body, headers={"Accept": "image/png"})
        assert grid.headers["content-type"] == "image/png"
        assert grid.headers["x-seed"] == "8"
        laid = np.asarray(Picture.open(io.BytesIO(grid.content)))
        H, W = config.height + 2, config.width + 2
        assert laid.shape[:2] == (2 * H - 2, 3 * W - 2)
        for j, image in enumerate(images):
            y, x = j // 3 * H, j % 3 * W
            cell = laid[y : y + config.height, x : x + config.width]
            np.testing.assert_array_equal(cell.reshape(image.shape), image)
        one = api.client.post(
            "/v1/samples", json=body | {"n": 1}, headers={"Accept": "image/*"}
        )  # fmt: skip
        np.testing.assert_array_equal(decode_png(one.content, config), images[0])
        packed = api.client.post("/v1/samples", json=body, headers={"Accept": "application/zip"})
        assert packed.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
            assert archive.testzip() is None
            facts = {(one.date_time, one.compress_type) for one in archive.infolist()}
            assert facts == {
                ((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)
            }  # makes the bytes reproducible
            names = archive.namelist()
            assert names == [f"{j:04d}-seed-{8 + j}.png" for j in range(5)]
            for name, image in zip(names, images, strict=True):
                np.testing.assert_array_equal(decode_png(archive.read(name), config), image)
        again = api.client.post("/v1/samples", json=body, headers={"Accept": "application/zip"})
        assert again.content == packed.content
        bulk = api.client.post("/v1/samples", json=body, headers={"Accept": "application/x-npy"})
        assert (bulk.headers["content-type"], bulk.headers["x-seed"]) == ("application/x-npy", "8")
        array = np.load(io.BytesIO(bulk.content), allow_pickle=False)
        assert array.dtype == np.uint8
        assert array.shape == (5, config.height, config.width, config.channels)
        np.testing.assert_array_equal(array.reshape(5, *images[0].shape), images)


def test_concurrent_requests_draw_the_same_images(api: LiveServer) -> None:
    alone = api.samples(n=2, seed=1000).json()["images"]

    def ask(j: int) -> Any:
        return api.samples(n=1 + j % 3, seed=1000 + j).json()["images"]

    with ThreadPoolExecutor(10) as pool:
        concurrent = list(pool.map(ask, range(20)))
    assert concurrent[0][0]["png"] == alone[0]["png"]
    assert concurrent[1][0]["png"] == alone[1]["png"]
    by_seed: dict[int, set[str]] = {}
    for images in concurrent:
        for image in images:
            by_seed.setdefault(image["seed"], set()).add(image["png"])
    assert all(len(pictures) == 1 for pictures in by_seed.values())
