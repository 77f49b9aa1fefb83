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


@pytest.mark.parametrize("address", ["#", "#draw?n=2&seed=5", "#inside"])
def test_paste_during_model_loading_is_not_lost(visit: Open, address: str) -> None:
    page = visit()
    wait_until_drawn(page)
    requested: list[Route] = []
    page.route("**/v1/models", lambda route: requested.append(route))
    with page.expect_request("**/v1/models"):
        page.goto(page.url.partition("#")[0] + "?" + address)
    paste(page, encode(random_picture(seed=3)))
    requested[0].continue_()
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


@pytest.mark.parametrize("meanwhile", ["another picture", "another model"])
@pytest.mark.parametrize("view", ["complete", "inside"])
def test_slow_file_is_superseded(visit: Open, view: str, meanwhile: str) -> None:
    page = visit("#draw?n=1&seed=5", script=HELD)
    wait_until_drawn(page)
    page.click(f"nav [data-view={view}]")
    if view == "inside":
        wait_until_measured(page)
    else:
        wait_until_drawn(page, view)
    page.evaluate("window.holding = true")
    paste(page, encode(random_picture(seed=3)))
    page.wait_for_function("() => window.held.length")
    page.evaluate("window.holding = false")
    status = page.locator("#editor-status" if view == "complete" else "#inside-caption")
    yours = re.compile(
        "your picture as the model sees it"
        if view == "complete"
        else "Your picture.*bits per value"
    )
    if meanwhile == "another model":
        pick_model(page, "colour")
        page.evaluate("window.held[0]()")
        expect(status).to_have_text(yours)
        shown = page.locator("#editor" if view == "complete" else "#inside-picture")
        assert shown.evaluate("(c) => [c.width, c.height]") == [COLOUR.width, COLOUR.height]
        return
    paste(page, encode(random_picture(seed=4)))
    expect(status).to_have_text(yours)
    canvas = "#editor" if view == "complete" else "#inside-picture"
    before = pixels(page, canvas)
    page.evaluate("window.held[0]()")
    page.wait_for_timeout(300)
    assert pixels(page, canvas) == before
