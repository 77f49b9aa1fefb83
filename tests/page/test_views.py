"""Views, each of which is fetched when it is first shown: late, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.page.helpers import Open, expect, finished, measured

if TYPE_CHECKING:
    from playwright.sync_api import Route


def test_a_view_that_cannot_be_fetched_says_so(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED", "A part of this page did not load"])
    finished(page)
    page.route("**/play.js", lambda route: route.abort())
    page.click("nav [data-view=play]")
    expect(page.locator("#loading")).to_contain_text("A part of this page did not load.")
    page.unroute("**/play.js")
    page.click("#reload")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    expect(page.locator("#reload")).to_be_hidden()


def test_what_is_no_longer_waited_for_is_not_said_to_load(visit: Open) -> None:
    page = visit()
    finished(page)
    page.route("**/learn.js", lambda route: None)
    with page.expect_request("**/learn.js"):
        page.click("nav [data-view=learn]")
    page.click("nav [data-view=draw]")
    page.wait_for_timeout(700)
    expect(page.locator("#loading")).to_be_hidden()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_picture_that_waits_for_its_view_says_so_and_follows_nobody(
    visit: Open, elsewhere: bool
) -> None:
    page = visit("#draw?n=1&seed=5")
    finished(page)
    asked: list[Route] = []
    page.route("**/inside.js", lambda route: asked.append(route))
    page.locator("#draw .image-grid button").first.click()
    with page.expect_request("**/inside.js"):
        page.click("#viewer-inside")
    expect(page.locator("#loading")).to_contain_text("Loading …")
    if elsewhere:
        page.click("nav [data-view=play]")
        expect(page.locator("#play")).to_be_visible()
        with page.expect_response("**/inside.js"):
            asked[0].continue_()
        page.wait_for_timeout(300)
        expect(page.locator("#play")).to_be_visible()
    else:
        page.click("nav [data-view=inside]")  # for nothing seems to come
        asked[0].continue_()
        measured(page)
        expect(page.locator("#inside-caption")).to_contain_text("Seed 5:")
    expect(page.locator("#loading")).to_be_hidden()
