"""Tests of the recipe in saved pictures, and of the dialog that checks a dropped picture."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from scanline.service.recipes.recipe import read_recipe
from tests.page.helpers import (
    Open,
    expect,
    open_in_editor,
    pixels,
    set_slider,
    url_hash,
    wait_until_drawn,
)
from tests.page.test_save import drop, saved
from tests.service.fixtures import GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAME = "Same picture, to the pixel."


def save(visit: Open, button: str = "#viewer-png", view: str = "draw", index: int = 0) -> bytes:
    """Draw an image, and save it from the viewer."""
    page = visit(f"#{view}?n=2&seed=8&label=one&temperature=0.9&top_p=0.7")
    wait_until_drawn(page)
    page.locator(f"#{view} .image-grid button").nth(index).click()
    if "copy" in button:
        page.click("#viewer [data-share-open]")
    return saved(page, button)


def edit(file: bytes, *places: tuple[int, int]) -> bytes:
    """Invert pixels of a saved picture, as an image editor that keeps texts does."""
    with Image.open(io.BytesIO(file)) as picture:
        values, info = np.array(picture.convert("RGB")), PngInfo()
        for name in ("scanline", "parameters"):
            info.add_text(name, str(picture.info[name]))
    for x, y in places:
        values[y, x] ^= 255
    return encode(Image.fromarray(values), pnginfo=info)


def drop_elsewhere(visit: Open, file: bytes, **options: Any) -> Page:
    """Drop a file on a view that does not work with pictures."""
    page: Page = visit("#learn", **options)
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
    drop(page, file)
    expect(page.locator("#verify")).to_be_visible()
    return page


@pytest.mark.parametrize(
    ("button", "scale"), [("#viewer-png", 1), ("#viewer [data-copy=png]", 112)]
)
def test_saved_picture_is_verified(visit: Open, button: str, scale: int) -> None:
    file = save(visit, button, index=1)
    recipe = read_recipe(file)
    assert recipe is not None
    assert (recipe.model, recipe.seed, recipe.n, recipe.label) == ("grey", 9, 1, "one")
    assert (recipe.temperature, recipe.top_p, recipe.scale) == (0.9, 0.7, scale)
    with Image.open(io.BytesIO(file)) as picture:
        assert picture.size == (scale * GREY.width, scale * GREY.height)
        assert picture.info["parameters"].startswith("one\nSteps: 30, ")
    page = drop_elsewhere(visit, file)
    expect(page.locator("#verify-verdict")).to_have_text(SAME)
    expect(page.locator("#verify-facts")).to_have_text("grey · class one · seed 9")


def test_verified_picture_is_drawn_again(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8&label=one&temperature=0.9&top_p=0.7")
    wait_until_drawn(page)
    shown = pixels(page, "#draw .image-grid canvas")
    page.locator("#draw .image-grid button").click()
    other = drop_elsewhere(visit, saved(page, "#viewer-png"))
    other.click("#verify-draw")
    wait_until_drawn(other)
    expect(other.locator("#verify")).to_be_hidden()
    fields = {"n=1", "seed=8", "label=one", "temperature=0.9", "top_p=0.7"}
    assert fields <= set(url_hash(other).partition("?")[2].split("&"))
    assert pixels(other, "#draw .image-grid canvas") == shown


def test_changed_pixels_are_shown(visit: Open) -> None:
    page = drop_elsewhere(visit, edit(save(visit), (0, 0), (2, 3), (4, 5)))
    expect(page.locator("#verify-verdict")).to_have_text(
        "This picture was changed: 3 pixels differ, shown in red."
    )
    picture = page.locator("#verify-picture")
    expect(picture).to_have_attribute("alt", "The changed pixels, in red")
    address = picture.get_attribute("src") or ""
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))
    scale = shown.shape[0] // GREY.height
    assert (shown[::scale, ::scale] == (255, 0, 80)).all(-1).sum() == 3
    drop(page, edit(save(visit), (0, 0)))  # while the dialog is open
    expect(page.locator("#verify-verdict")).to_contain_text("1 pixel differs")


def test_saved_archive_is_verified(visit: Open) -> None:
    page = visit("#draw?n=2&seed=8")
    wait_until_drawn(page)
    archive = zipfile.ZipFile(io.BytesIO(saved(page, "#draw [data-action=zip]")))
    for name in archive.namelist()[:2]:
        other = drop_elsewhere(visit, archive.read(name))
        expect(other.locator("#verify-verdict")).to_have_text(SAME)


def test_completion_of_rows_is_verified(visit: Open) -> None:
    page = open_in_editor(visit)
    set_slider(page, "#complete-rows", 4)
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    page.locator("#complete .image-grid button").nth(2).click()
    file = saved(page, "#viewer-png")
    other = drop_elsewhere(visit, file)
    expect(other.locator("#verify-verdict")).to_have_text(SAME)
    expect(other.locator("#verify-draw")).to_be_hidden()
    drop(other, edit(file, (0, 0)))
    expect(other.locator("#verify-verdict")).to_contain_text("This picture is a completion.")


def test_saved_picture_opens_in_the_editor(visit: Open) -> None:
    page = drop_elsewhere(visit, save(visit))
    page.click("#verify-open")
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")


def test_unavailable_server_is_reported(visit: Open) -> None:
    page = visit("#learn", allowed=["400"])
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
    reply = {"error": {"message": "out of paint", "type": "x", "param": None, "code": None}}
    page.route("**/v1/verify", lambda route: route.fulfill(status=400, body=json.dumps(reply)))
    drop(page, save(visit))
    expect(page.locator("#verify-verdict")).to_have_text("It cannot be checked. Out of paint.")


def test_picture_with_an_unknown_option_is_not_offered_to_be_drawn_again(visit: Open) -> None:
    file = save(visit)
    with Image.open(io.BytesIO(file)) as picture:
        recipe, info = json.loads(picture.info["scanline"]), PngInfo()
        info.add_text("scanline", json.dumps(recipe | {"min_p": 0.5}))
        changed = encode(picture, pnginfo=info)
    page = drop_elsewhere(visit, file, allowed=["400"])
    expect(page.locator("#verify-draw")).to_be_visible()
    drop(page, changed)
    expect(page.locator("#verify-facts")).to_have_text("grey · class one · seed 8")
    expect(page.locator("#verify-draw")).to_be_hidden()


@pytest.mark.parametrize("text", ["#draw?seed=1", "{}", "[]", '{"format":2}'])
def test_unknown_recipe_is_ignored(visit: Open, text: str) -> None:
    page = visit("#learn")
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
    info = PngInfo()
    info.add_text("scanline", text)
    drop(page, encode(random_picture(), pnginfo=info))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")


def test_large_seed_is_kept(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    wait_until_drawn(page)
    for scale in (1, 7):
        kept = page.evaluate(
            """async (scale) => {
                const { call } = await import("./static/api.js");
                const { embedRecipe } = await import("./static/recipe.js");
                const { toPng, blankPicture } = await import("./static/pixels.js");
                const path = "v1/samples/grey/18446744073709551615.png";
                const png = await (await call(path)).blob();
                const text = btoa(String.fromCharCode(...new Uint8Array(await png.arrayBuffer())));
                const shape = { width: 5, height: 6, channels: 1 };
                const blank = await toPng(blankPicture(shape), undefined, scale);
                const file = await embedRecipe(blank, text, scale);
                const bytes = new Uint8Array(await file.arrayBuffer());
                return btoa(String.fromCharCode(...bytes));
            }""",
            scale,
        )
        recipe = read_recipe(base64.b64decode(kept))
        assert recipe is not None
        assert (recipe.seed, recipe.scale) == (2**64 - 1, scale)


@pytest.mark.parametrize("query", ["n=3&label=random", "n=5", "n=1&label=one"])
def test_shared_picture_is_verified(visit: Open, query: str) -> None:
    page = visit(f"#draw?seed=8&{query}")
    wait_until_drawn(page)
    page.click("#draw .results > .share [data-share-open]")
    file = saved(page, "#draw .results > .share [data-copy=png]")
    recipe = read_recipe(file)
    assert recipe is not None
    assert (recipe.seed, recipe.n) == (8, int(query[2]))
    expect(drop_elsewhere(visit, file).locator("#verify-verdict")).to_have_text(SAME)


def test_watched_picture_is_verified(visit: Open) -> None:
    page = visit("#watch?seed=8&label=one")
    page.click("#watch [data-share-open]")
    with page.expect_download() as download:
        page.click("#watch [data-copy=png]")
    file = Path(download.value.path()).read_bytes()
    expect(drop_elsewhere(visit, file).locator("#verify-verdict")).to_have_text(SAME)


def test_shared_comparison_has_no_recipe(visit: Open) -> None:
    page = visit("#draw?seed=8&n=2&by=temperature")
    wait_until_drawn(page)
    page.click("#draw .results > .share [data-share-open]")
    assert read_recipe(saved(page, "#draw .results > .share [data-copy=png]")) is None
