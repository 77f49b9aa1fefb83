"""Tests of the recipe in saved pictures, and of the dialog that checks a dropped picture."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from scanline.service.recipes.recipe import read_recipe
from tests.page.helpers import (
    Open,
    expect,
    follow_link,
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


def draw_two(visit: Open) -> Page:
    page: Page = visit("#draw?n=2&seed=8&label=one&temperature=0.9&top_p=0.7")
    wait_until_drawn(page)
    return page


def save(visit: Open) -> bytes:
    """Draw an image, and save it from the viewer."""
    page = draw_two(visit)
    page.locator("#draw .image-grid button").first.click()
    return saved(page, "#viewer-png")


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


def test_saved_picture_is_verified_and_drawn_again(visit: Open) -> None:
    page = draw_two(visit)
    shown = pixels(page, "#draw .image-grid canvas")[1]
    page.locator("#draw .image-grid button").nth(1).click()
    files = []
    for button, scale in (("#viewer-png", 1), ("#viewer [data-copy=png]", 112)):
        if scale > 1:
            page.click("#viewer [data-share-open]")
        file = saved(page, button)
        recipe = read_recipe(file)
        assert recipe is not None
        assert (recipe.model, recipe.seed, recipe.n, recipe.label) == ("grey", 9, 1, "one")
        assert (recipe.temperature, recipe.top_p, recipe.scale) == (0.9, 0.7, scale)
        with Image.open(io.BytesIO(file)) as picture:
            assert picture.size == (scale * GREY.width, scale * GREY.height)
            assert picture.info["parameters"].startswith("one\nSteps: 30, ")
        files.append(file)
    plain, enlarged = files
    other = drop_elsewhere(visit, plain)
    expect(other.locator("#verify-verdict")).to_have_text(SAME)
    expect(other.locator("#verify-facts")).to_have_text("grey · class one · seed 9")
    other.keyboard.press("Escape")
    drop(other, enlarged)
    expect(other.locator("#verify")).to_be_visible()
    expect(other.locator("#verify-verdict")).to_have_text(SAME)
    other.click("#verify-draw")
    wait_until_drawn(other)
    expect(other.locator("#verify")).to_be_hidden()
    fields = {"n=1", "seed=9", "label=one", "temperature=0.9", "top_p=0.7"}
    assert fields <= set(url_hash(other).partition("?")[2].split("&"))
    assert pixels(other, "#draw .image-grid canvas") == [shown]
    drop(other, plain)
    other.click("#verify-open")
    expect(other.locator("#editor-status")).to_contain_text("as the model sees it")


def test_changed_pixels_are_shown(visit: Open) -> None:
    file = save(visit)
    page = drop_elsewhere(visit, edit(file, (0, 0), (2, 3), (4, 5)))
    expect(page.locator("#verify-verdict")).to_have_text(
        "This picture was changed: 3 pixels differ, shown in red."
    )
    picture = page.locator("#verify-picture")
    expect(picture).to_have_attribute("alt", "The changed pixels, in red")
    address = picture.get_attribute("src") or ""
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))
    scale = shown.shape[0] // GREY.height
    assert (shown[::scale, ::scale] == (255, 0, 80)).all(-1).sum() == 3
    drop(page, edit(file, (0, 0)))  # while the dialog is open
    expect(page.locator("#verify-verdict")).to_contain_text("1 pixel differs")


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


def test_pictures_that_cannot_be_checked_or_drawn_again(visit: Open) -> None:
    file = save(visit)
    with Image.open(io.BytesIO(file)) as picture:
        recipe, info = json.loads(picture.info["scanline"]), PngInfo()
        info.add_text("scanline", json.dumps(recipe | {"min_p": 0.5}))
        changed = encode(picture, pnginfo=info)
    page = drop_elsewhere(visit, file, allowed=["400"])
    expect(page.locator("#verify-draw")).to_be_visible()
    drop(page, changed)
    expect(page.locator("#verify-draw")).to_be_hidden()
    expect(page.locator("#verify-facts")).to_have_text("grey · class one · seed 8")
    reply = {"error": {"message": "out of paint", "type": "x", "param": None, "code": None}}
    page.route("**/v1/verify", lambda route: route.fulfill(status=400, body=json.dumps(reply)))
    drop(page, file)
    expect(page.locator("#verify-verdict")).to_have_text("It cannot be checked. Out of paint.")


def test_unknown_recipes_are_ignored(visit: Open) -> None:
    page = visit("#learn")
    for text in ("#draw?seed=1", "{}", "[]", '{"format":2}'):
        page.click("nav >> text=Learn")
        expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
        info = PngInfo()
        info.add_text("scanline", text)
        drop(page, encode(random_picture(), pnginfo=info))
        expect(page.locator("#complete")).to_be_visible()
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


def test_shared_pictures_are_verified(visit: Open) -> None:
    page = visit("#draw?seed=8&n=2&by=temperature")
    wait_until_drawn(page)
    share_open, png = (f"#draw .results > .share [data-{b}]" for b in ("share-open", "copy=png"))
    page.click(share_open)
    assert read_recipe(saved(page, png)) is None, "a comparison has no recipe"
    files = []
    for seed, query in ((20, "n=3&label=random"), (30, "n=5"), (40, "n=2&label=one")):
        follow_link(page, f"#draw?seed={seed}&{query}")
        expect(page.locator("#draw .image-grid small").first).to_contain_text(f"seed {seed}")
        wait_until_drawn(page)
        page.click(share_open)
        files.append((seed, saved(page, png)))
        recipe = read_recipe(files[-1][1])
        assert recipe is not None
        assert (recipe.seed, recipe.n) == (seed, int(query[2]))
    archive = zipfile.ZipFile(io.BytesIO(saved(page, "#draw [data-action=zip]")))
    files.append((41, archive.read(archive.namelist()[1])))
    follow_link(page, "#watch?seed=50&label=one")
    page.click("#watch [data-share-open]")
    files.append((50, saved(page, "#watch [data-copy=png]")))
    other = drop_elsewhere(visit, files[0][1])
    for seed, file in files:
        drop(other, file)
        expect(other.locator("#verify-facts")).to_contain_text(f"seed {seed}")
        expect(other.locator("#verify-verdict")).to_have_text(SAME)
