"""Tests of pasted and dropped files, also while views, models or other files load."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.page.helpers import (
    Open,
    expect,
    pick_model,
    pixels,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fixtures import COLOUR, GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def paste(page: Page, data: bytes) -> None:
    """Paste a picture."""
    page.evaluate(
        """(text) => {
            const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], "pasted.png", {type: "image/png"}));
            document.dispatchEvent(new ClipboardEvent("paste", {clipboardData: data}));
        }""",
        base64.b64encode(data).decode(),
    )


def test_paste_in_inside_view_is_inspected(visit: Open) -> None:
    page = visit("#inside")
    wait_until_measured(page)
    picture = random_picture(seed=3)
    paste(page, encode(picture))
    expect(page.locator("#inside-caption")).to_contain_text(
        re.compile("Your picture.*bits per value")
    )
    page.click("nav >> text=Draw")
    wait_until_drawn(page)
    page.click("nav >> text=Look inside")
    expect(page.locator("#inside")).to_be_visible()
    expect(page.locator("#inside-caption")).to_contain_text("Your picture")


def test_paste_elsewhere_opens_editor(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    picture = random_picture(seed=3)
    paste(page, encode(picture))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    assert url_hash(page).startswith("#complete")
    rows = np.array(pixels(page, "#editor")[0]).reshape(GREY.height, GREY.width, 4)
    assert np.array_equal(rows[:3, :, 0], np.asarray(picture)[:3])
    page.go_back()
    expect(page.locator("#draw")).to_be_visible()


@pytest.mark.parametrize("comes", [True, False])
def test_paste_goes_to_view_being_loaded(visit: Open, comes: bool) -> None:
    page = visit(allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    requested: list[Route] = []
    page.route(
        "**/static/inside.js", lambda route: requested.append(route) if comes else route.abort()
    )
    with page.expect_request("**/static/inside.js"):
        page.click("nav [data-view=inside]")
    if comes:
        paste(page, encode(random_picture(seed=3)))
        requested[0].continue_()
        expect(page.locator("#inside-caption")).to_contain_text("Your picture")
        return
    expect(page.locator("#loading")).to_contain_text("did not load")
    pick_model(page, "colour")  # of the view that is still shown
    wait_until_drawn(page)
    paste(page, encode(random_picture(seed=3)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")


def test_paste_during_model_loading_is_not_lost(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/models", lambda route: held.append(route))
    for number, address in enumerate(("#", "#draw?n=2&seed=5", "#inside")):
        with page.expect_request("**/v1/models"):
            page.goto(page.url.partition("?")[0].partition("#")[0] + f"?{number}{address}")
        paste(page, encode(random_picture(seed=3)))
        held.pop().continue_()
        if address == "#inside":
            expect(page.locator("#inside-caption")).to_contain_text("Your picture")
        else:
            expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
            rows = np.array(pixels(page, "#editor")[0]).reshape(GREY.height, GREY.width, 4)
            assert np.array_equal(rows[:3, :, 0], np.asarray(random_picture(seed=3))[:3])
        expect(page.locator("#draw")).to_be_hidden()
        page.wait_for_timeout(200)
        expect(page.locator("#draw")).to_be_hidden()


HELD = """window.held = [];
    const read = window.createImageBitmap;
    window.createImageBitmap = async (file) => {
        if (window.holding) await new Promise((resolve) => window.held.push(resolve));
        return read(file);
    };"""


@pytest.mark.parametrize("view", ["complete", "inside"])
def test_slow_file_is_superseded(visit: Open, view: str) -> None:
    page = visit(f"#{view}", script=HELD)
    if view == "inside":
        wait_until_measured(page)
        canvas, status, yours = "#inside-picture", "#inside-caption", "Your picture.*bits per value"
    else:
        wait_until_drawn(page, view)
        canvas, status, yours = "#editor", "#editor-status", "your picture as the model sees it"
    status = page.locator(status)

    def paste_slowly() -> None:
        page.evaluate("() => { window.holding = true; window.held = []; }")
        paste(page, encode(random_picture(seed=3)))
        page.wait_for_function("() => window.held.length")
        page.evaluate("window.holding = false")

    paste_slowly()
    paste(page, encode(random_picture(seed=4)))
    expect(status).to_have_text(re.compile(yours))
    before = pixels(page, canvas)
    page.evaluate("window.held[0]()")
    page.wait_for_timeout(300)
    assert pixels(page, canvas) == before, "another picture came meanwhile"
    paste_slowly()
    pick_model(page, "colour")
    expect(status).not_to_have_text(re.compile(yours))
    page.evaluate("window.held[0]()")
    expect(status).to_have_text(re.compile(yours))
    size = page.locator(canvas).evaluate("(c) => [c.width, c.height]")
    assert size == [COLOUR.width, COLOUR.height], "another model was chosen meanwhile"
