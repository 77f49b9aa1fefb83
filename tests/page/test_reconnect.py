"""Tests of waiting for an unreachable server: status messages and recovery."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.page.helpers import (
    Open,
    expect,
    listen,
    pick_model,
    set_slider,
    wait_until_drawn,
    wait_until_measured,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

LOST = "Connection lost. Reconnecting in"
QUICK = """() => {
    const wait = window.setTimeout;
    window.setTimeout = (act, ms, ...rest) => wait(act, ms / 50, ...rest);
}"""


def lose(page: Page, path: str, times: int) -> None:
    """Abort the first `times` requests for this path."""
    requested: list[str] = []

    def answer(route: Route) -> None:
        requested.append(route.request.url)
        if len(requested) > times:
            route.continue_()
        else:
            route.abort()

    page.route(f"**/v1/{path}", answer)


def wait_for_scores(page: Page, times: int) -> None:
    """Wait until the page has sent this many score requests."""
    page.wait_for_function(
        """(times) => performance.getEntriesByType("resource")
            .filter(({ name }) => name.endsWith("/v1/score")).length >= times""",
        arg=times,
    )


def test_scenes_report_waiting_and_continue(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    dice, bits, limits = (f"#scene-{name} [data-status]" for name in ("dice", "bits", "limits"))
    listen(page, dice, bits, limits)
    for path in ("samples", "score", "distribution/pixel", "completions"):
        lose(page, path, 2)
    page.click("nav [data-view=learn]")
    expect(page.locator(bits)).to_contain_text("bits instead of")
    expect(page.locator("#scene-dice [data-dice-verdict]")).to_contain_text("Next:")
    expect(page.locator(dice)).to_be_empty()
    page.click("#scene-limits button")
    expect(page.locator(limits)).to_contain_text("without looking")
    messages = page.evaluate("window.messages")
    for line in (dice, bits, limits):
        assert any(LOST in text for text in messages[line]), messages


def test_scene_restarted_by_visitor_is_not_restarted(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    page.evaluate(QUICK)
    page.route("**/v1/**", lambda route: route.abort())
    page.click("nav [data-view=learn]")
    bits = page.locator("#scene-bits [data-status]")
    expect(bits).to_contain_text("cannot be reached")
    page.unroute("**/v1/**")
    page.click("#scene-dice [data-dice-restart]")
    page.click("#scene-dice [data-dice-finish]")
    verdict = page.locator("#scene-dice [data-dice-verdict]")
    expect(verdict).to_contain_text("The last pixel is")
    page.click("nav [data-view=draw]")
    page.click("nav [data-view=learn]")
    expect(bits).to_contain_text("bits instead of")
    expect(verdict).to_contain_text("The last pixel is")


def test_examples_report_waiting(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    listen(page, "#editor-status")
    lose(page, "samples", 6)
    page.click("nav [data-view=complete]")
    expect(page.locator("#examples canvas")).to_have_count(6)
    expect(page.locator("#editor-status")).to_be_empty()
    messages = page.evaluate("window.messages['#editor-status']")
    assert any(LOST in text for text in messages), messages


def test_inside_view_reports_waiting(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    report = "#inside .actions [data-status-panel]"
    listen(page, report)
    for path in ("samples", "score"):
        lose(page, path, 1)
    page.goto(page.url.split("#")[0] + "#inside?seed=5&at=3")
    wait_until_measured(page)
    expect(page.locator(report)).to_be_empty()
    messages = page.evaluate(f"window.messages['{report}']")
    assert any(LOST in text for text in messages), messages


def test_prediction_error_disappears_on_success(visit: Open) -> None:
    page = visit("#inside?seed=5", allowed=["ERR_FAILED"])
    wait_until_measured(page)
    page.route("**/v1/distribution/pixel", lambda route: route.abort())
    set_slider(page, "#inside-position", 3)
    expect(page.locator("#inside [role=alert]")).to_contain_text("cannot be reached")
    page.unroute("**/v1/distribution/pixel")
    set_slider(page, "#inside-position", 4)
    expect(page.locator("#inside [role=alert]")).to_have_count(0)


def test_prediction_reports_waiting_for_a_full_server(visit: Open) -> None:
    page = visit("#inside?seed=5", allowed=["429"])
    wait_until_measured(page)
    full = {"error": {"message": "too much work is waiting", "code": "queue_full"}}
    page.route(
        "**/v1/distribution/pixel",
        lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=full),
        times=1,
    )
    set_slider(page, "#inside-position", 3)
    report = page.locator("#inside .actions [data-status-panel]")
    expect(report).to_contain_text("The server is full. Trying again in 1 s")
    expect(report).to_have_text("")


@pytest.mark.parametrize("other", ["pixel", "model"])
def test_lost_query_does_not_drop_the_next(visit: Open, other: str) -> None:
    page = visit("#inside?seed=5", allowed=["ERR_FAILED"])
    wait_until_measured(page)
    requested: list[Route] = []

    def hold_first(route: Route) -> None:
        requested.append(route)
        if len(requested) > 1:
            route.continue_()

    page.route("**/v1/distribution/pixel", hold_first)
    with page.expect_request("**/v1/distribution/pixel"):
        set_slider(page, "#inside-position", 3)
    if other == "pixel":
        set_slider(page, "#inside-position", 4)
    else:
        pick_model(page, "colour")
        expect(page.locator("#inside-caption")).to_contain_text("bits per value")
    listen(page, "#inside .actions [data-status-panel]")
    requested[0].abort()
    expect(page.locator("#expected-text")).to_contain_text("ost likely")
    expect(page.locator("#charts")).to_have_attribute("aria-busy", "false")
    assert len(requested) > 1
    if other == "model":
        messages = page.evaluate("Object.values(window.messages).flat()")
        assert not any("cannot be reached" in text for text in messages)


def test_game_reports_waiting_for_model(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    page.route("**/v1/score", lambda route: route.abort())
    page.click("nav [data-view=play]")
    status = page.locator("#play-status")
    expect(status).to_have_text("Picture 1 of 5. What will it be?")
    wait_for_scores(page, 2)
    expect(status).to_have_text(
        "Picture 1 of 5. What will it be?"
    )  # not reported before the visitor has guessed
    page.click("#play-choices >> text='zero'")
    expect(status).to_have_text(re.compile(rf"drawn as .*\. {LOST}"))
    page.unroute("**/v1/score")
    expect(status).to_contain_text("the model says")


def test_lost_model_guess_is_fetched_again(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    page.evaluate(QUICK)
    page.route("**/v1/score", lambda route: route.abort())
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    wait_for_scores(page, 8)  # all tries have failed
    page.unroute("**/v1/score")
    page.click("#play-choices >> text='zero'")
    expect(page.locator("#play-status")).to_contain_text("the model says")
