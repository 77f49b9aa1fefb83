"""Tests of views that load slowly or fail to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scanline.service.state.app_state import AppState
from tests.page.helpers import Open, expect, wait_until_drawn, wait_until_measured
from tests.service.fake_decoders import FakeDecoder

if TYPE_CHECKING:
    from playwright.sync_api import Route


def test_slow_server_is_announced(visit: Open, served: tuple[AppState, str, FakeDecoder]) -> None:
    engine = served[0].models["grey"].engine
    page = visit("#draw?model=grey")
    wait_until_drawn(page)
    expect(page.locator("#slow-note")).to_be_hidden()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "slow", True)
        page = visit("#draw?model=grey")
        wait_until_drawn(page)
        expect(page.locator("#slow-note")).to_be_visible()


def test_failed_view_is_reported(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED", "A part of this page did not load"])
    wait_until_drawn(page)
    page.route("**/play.js*", lambda route: route.abort())
    page.click("nav [data-view=play]")
    expect(page.locator("#loading")).to_contain_text("A part of this page did not load.")
    expect(page.locator("#reload")).to_be_visible()
    page.unroute("**/play.js*")
    page.click("#reload")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    expect(page.locator("#reload")).to_be_hidden()


def test_no_loading_notice_after_leaving(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    page.route("**/learn.js", lambda route: None)
    with page.expect_request("**/learn.js"):
        page.click("nav [data-view=learn]")
    page.click("nav [data-view=draw]")
    page.wait_for_timeout(700)
    expect(page.locator("#loading")).to_be_hidden()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_slow_view_is_announced_and_abandoned(visit: Open, elsewhere: bool) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    requested: list[Route] = []
    page.route("**/inside.js", lambda route: requested.append(route))
    page.locator("#draw .image-grid button").first.click()
    with page.expect_request("**/inside.js"):
        page.click("#viewer-inside")
    expect(page.locator("#loading")).to_contain_text("Loading …")
    if elsewhere:
        page.click("nav [data-view=play]")
        expect(page.locator("#play")).to_be_visible()
        with page.expect_response("**/inside.js"):
            requested[0].continue_()
        page.wait_for_timeout(300)
        expect(page.locator("#play")).to_be_visible()
    else:
        page.click("nav [data-view=inside]")  # an impatient visitor
        requested[0].continue_()
        wait_until_measured(page)
        expect(page.locator("#inside-caption")).to_contain_text("Seed 5 ·")
    expect(page.locator("#loading")).to_be_hidden()


def test_print_has_pictures_and_captions_without_controls(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&label=one")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-keep")
    page.keyboard.press("Escape")
    controls = page.locator(":is(a, button, input, select):not(:has(canvas, img))")
    for view in ("draw", "complete"):
        page.emulate_media(media="screen")
        page.click(f"nav [data-view={view}]")
        wait_until_drawn(page, view)
        page.emulate_media(media="print")
        expect(page.locator(f"#{view} .image-grid canvas").last).to_be_visible()
        expect(page.locator(f"#{view} [data-strip=kept] img")).to_be_visible()
        expect(controls.filter(visible=True)).to_have_count(0)
        expect(page.locator("#editor")).to_be_hidden()
