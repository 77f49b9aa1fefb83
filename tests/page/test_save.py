"""Tests of saved files: pictures, animations and archives."""

from __future__ import annotations

import base64
import csv
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.page.helpers import (
    Open,
    expect,
    follow_link,
    pixels,
    share,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fixtures import COLOUR, GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page

DROP = """([text]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([bytes], "dropped.png", {type: "image/png"}));
    document.body.dispatchEvent(
        new DragEvent("drop", {dataTransfer, bubbles: true, cancelable: true}));
}"""


def saved(page: Page, button: str) -> bytes:
    """Click a button and return the file that it saves."""
    with page.expect_download() as download:
        page.click(button)
    return Path(download.value.path()).read_bytes()


def drop(page: Page, data: bytes) -> None:
    page.evaluate(DROP, [base64.b64encode(data).decode()])


def test_saved_picture_opens_in_editor_and_inside_view(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").click()
    data = saved(page, "#viewer-png")
    page.keyboard.press("Escape")
    page.click("nav [data-view=complete]")
    wait_until_drawn(page, "complete")
    drop(page, data)
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    page.click("nav [data-view=inside]")
    wait_until_measured(page)
    drop(page, data)
    expect(page.locator("#inside-caption")).to_contain_text("Your picture")


def test_gif_shows_drawing(visit: Open) -> None:
    page = visit("#draw?model=colour&n=1&seed=8")
    for model, config in (("colour", COLOUR), ("grey", GREY)):
        follow_link(page, f"#draw?model={model}&n=1&seed=8")
        expect(page.locator("#model-field :checked")).to_have_value(model)
        wait_until_drawn(page)
        shown = np.array(pixels(page, "#draw .image-grid canvas")[0]).reshape(-1, 4)
        page.locator("#draw .image-grid button").first.click()
        page.click("#viewer [data-share-open]")
        scale = 280 // config.width
        with Image.open(io.BytesIO(saved(page, "#viewer [data-copy=gif]"))) as gif:
            assert gif.info["loop"] == 0
            assert getattr(gif, "n_frames", 1) == config.pixels + 1
            for frame in (1, config.pixels // 2, config.pixels):
                gif.seek(frame)
                seen = np.asarray(gif.convert("RGBA"))[::scale, ::scale].reshape(-1, 4)
                assert np.array_equal(seen[:frame], shown[:frame])
                assert not seen[frame:, 3].any()
        page.keyboard.press("Escape")


def test_gif_with_many_colours_and_base64_are_exact(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    wait_until_drawn(page)
    values, text = page.evaluate(
        """async (side) => {
            const { encodeGif } = await import("./static/gif.js");
            const shape = { width: side, height: side, channels: 3 };
            const noise = (_, k) => Math.imul(k, 40503 * k) >>> 8;
            const values = Uint8Array.from({ length: 3 * side * side }, noise);
            const known = new Uint8Array(side * side).fill(1, 0, 9 * side + 5);
            const gif = encodeGif({ shape, values, known }, 3);
            const bytes = new Uint8Array(await gif.arrayBuffer());
            const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
            return [Array.from(values), btoa(text)];
        }""",
        160,
    )
    with Image.open(io.BytesIO(base64.b64decode(text))) as gif:
        gif.seek(getattr(gif, "n_frames", 1) - 1)
        assert gif.info["duration"] == 2000
        seen = np.asarray(gif.convert("RGB"))
    assert np.array_equal(seen.ravel(), np.array(values))
    same = page.evaluate(
        """async () => {
            const { toBase64Url, fromBase64Url } = await import("./static/pixels.js");
            const bytes = Uint8Array.from({ length: 400_000 }, (_, k) => (k * k) % 251);
            const text = await toBase64Url(new Blob([bytes]));
            const back = new Uint8Array(await fromBase64Url(text).arrayBuffer());
            return back.length === bytes.length && back.every((byte, k) => byte === bytes[k]);
        }"""
    )
    assert same, "large data in base64"


def test_saved_file_belongs_to_clicked_image(visit: Open) -> None:
    page = visit("#draw?n=2&seed=8")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    facts = page.locator("#viewer-facts")
    for button, kind in (
        ("#viewer-png", "png"),
        ("[data-copy=png]", "png"),
        ("[data-copy=gif]", "gif"),
    ):
        expect(facts).to_contain_text("Seed 8")
        with page.expect_download() as download:
            page.evaluate(
                """(button) => {
                    document.querySelector(`#viewer ${button}`).click();
                    const next = new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true });
                    document.getElementById("viewer").dispatchEvent(next);
                }""",
                button,
            )
        expect(facts).to_contain_text("Seed 9")
        assert download.value.suggested_filename == f"scanline-grey-8.{kind}", button
        if kind == "png":
            with Image.open(download.value.path()) as picture:
                assert '"seed":8,' in picture.text["scanline"]  # type: ignore[attr-defined]
        page.keyboard.press("ArrowLeft")


def test_dropped_folder_is_reported(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    wait_until_drawn(page)
    page.evaluate(
        """() => {
            const folder = new File(["x"], "folder");
            folder.slice = () => folder;
            folder.arrayBuffer = () => Promise.reject(new DOMException("", "NotFoundError"));
            const drop = new Event("drop", { bubbles: true, cancelable: true });
            drop.dataTransfer = { files: [folder] };
            document.body.dispatchEvent(drop);
        }"""
    )
    expect(page.locator("#complete [role=alert]")).to_contain_text("cannot read that file")


def test_archive_contains_images_and_table(visit: Open) -> None:
    page = visit("#draw?n=3&seed=8&label=a+frog")
    wait_until_drawn(page)
    shown = pixels(page, "#draw .image-grid canvas")
    with zipfile.ZipFile(io.BytesIO(saved(page, "#draw [data-action=zip]"))) as archive:
        assert archive.testzip() is None
        table = list(csv.DictReader(io.TextIOWrapper(archive.open("images.csv"), "utf-8")))
        assert [row["seed"] for row in table] == ["8", "9", "10"]
        assert {row["label"] for row in table} == {"a frog"}
        assert {row["model"] for row in table} == {"grey"}
        assert all(float(row["bits_per_dim"]) > 0 for row in table)
        for row, image in zip(table, shown, strict=True):
            with Image.open(archive.open(row["file"])) as picture:
                assert np.asarray(picture.convert("RGBA")).ravel().tolist() == image
                assert f'"seed":{row["seed"]},' in picture.text["scanline"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", ["gif", "zip"])
def test_failed_module_of_export_is_reported(visit: Open, module: str) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    page.route(f"**/{module}.js", lambda route: route.abort())
    if module == "gif":
        share(page, "#draw", "gif")
    else:
        page.click("#draw [data-action=zip]")
    expect(page.get_by_text("Reload the page")).to_be_visible()
