"""Tests of errors: failed generations, full servers, and models that are loading or replaced."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from scanline.service.state.app_state import AppState
from tests.page.helpers import (
    Open,
    expect,
    fill_setting,
    pick_model,
    wait_until_drawn,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def test_failed_images_are_marked(visit: Open, grey: FakeDecoder) -> None:
    page = visit("#draw?n=3&seed=5")
    wait_until_drawn(page)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("broken")

    grey.before_step = fail
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [role=alert]")).to_contain_text("rawing failed")
    expect(page.locator("#draw .image-grid small")).to_have_text(["not drawn"] * 3)


def answer_first(page: Page, times: int, **reply: Any) -> list[int]:
    """Answer the first `times` drawing requests with `reply`; return a list of all requests."""
    requested: list[int] = []

    def answer(route: Route) -> None:
        requested.append(1)
        if len(requested) > times:
            route.continue_()
        else:
            route.fulfill(**reply)

    page.route("**/v1/samples", answer)
    return requested


def test_refused_drawings_are_retried(visit: Open) -> None:
    page = visit(allowed=["502", "429"])
    wait_until_drawn(page)
    for times, code, message in (
        (2, None, "Reconnecting in"),
        (1, "queue_full", "full. Trying again"),
        (1, "quota_exceeded", "You have drawn as much as you may in a minute. Trying again"),
        (1, "too_many_in_flight", "Your earlier pictures are still being drawn. Trying again"),
    ):
        error = {"error": {"message": "no", "type": "x", "param": None, "code": code}}
        full = {"status": 429, "headers": {"Retry-After": "1"}, "json": error}
        requested = answer_first(page, times, **(full if code else {"status": 502, "body": "no"}))
        page.click("#draw-form button[type=submit]")
        expect(page.locator("#draw [data-status-panel]")).to_contain_text(message)
        wait_until_drawn(page)
        assert len(requested) == times + 1
        page.unroute("**/v1/samples")


def test_queue_position_is_shown(
    visit: Open, grey: FakeDecoder, served: tuple[AppState, str, FakeDecoder]
) -> None:
    page = visit()
    wait_until_drawn(page)
    hold = threading.Event()
    grey.before_step = lambda slots: (hold.wait(), None)[1]
    other = threading.Thread(
        target=httpx.post,
        args=(f"{served[1]}/v1/samples",),
        kwargs={"json": {"n": 10}, "timeout": 60},
    )
    other.start()
    until(lambda: served[0].models["grey"].engine.queue.waiting == 2)
    try:
        page.click("#draw-form button[type=submit]")
        expect(page.locator("#draw [data-status-panel]")).to_contain_text("1 image is ahead")
    finally:
        hold.set()  # otherwise the server never stops
    wait_until_drawn(page)
    other.join()


LOADING = "The models are loading. In a few seconds they begin to draw …"


def test_landing_is_readable_while_the_models_load(visit: Open) -> None:
    page = visit(allowed=["503"])
    wait_until_drawn(page)
    error = {"message": "loading", "type": "server_error", "code": "not_ready"}
    page.route("**/v1/models", lambda route: route.fulfill(status=503, json={"error": error}))
    page.goto(page.url.split("#")[0])
    page.reload()
    expect(page.locator("#loading [role=status]")).to_have_text(LOADING)
    for text in ("#draw-title", "#draw .intro p", "#start-own"):
        expect(page.locator(text)).to_be_visible()
    expect(page.locator("#draw-form")).to_be_hidden()
    page.unroute("**/v1/models")
    wait_until_drawn(page)
    expect(page.locator("#loading")).to_be_hidden()
    expect(page.locator("#draw-form")).to_be_visible()


def test_unchanged_status_is_not_announced_again(visit: Open) -> None:
    page = visit(allowed=["503"])
    wait_until_drawn(page)
    requested: list[int] = []

    def refuse(route: Route) -> None:
        requested.append(1)
        if len(requested) > 3:
            route.continue_()
        else:
            error = {"message": "loading", "type": "server_error", "code": "not_ready"}
            route.fulfill(status=503, json={"error": error})

    page.route("**/v1/models", refuse)
    page.add_init_script("""document.addEventListener("DOMContentLoaded", () => {
        window.messages = [];
        new MutationObserver((all) => window.messages.push(
            ...all.flatMap(({ addedNodes }) => [...addedNodes].map((node) => node.textContent))))
            .observe(document.querySelector("#loading [role=status]"), { childList: true });
    });""")
    page.reload()
    wait_until_drawn(page)
    assert page.evaluate("window.messages") == [LOADING]


def test_unknown_model_is_reported(visit: Open) -> None:
    page = visit("#draw?model=ghost&seed=5&n=1")
    wait_until_drawn(page)
    expect(page.locator("#loading")).to_contain_text("no model “ghost” here")
    pick_model(page, "colour")
    expect(page.locator("#loading")).to_be_hidden()
    wait_until_drawn(page)


def test_replaced_model_is_reported(visit: Open) -> None:
    """Otherwise, pixels of another size would be misplaced, or the drawing would never finish."""
    page = visit("#draw?n=1&seed=5", allowed=["404"])
    wait_until_drawn(page)

    def answer(route: Route) -> None:
        reply = route.fetch()
        wider = reply.text().replace(f'"width":{GREY.width}', f'"width":{GREY.width + 3}', 1)
        route.fulfill(response=reply, body=wider)

    page.route("**/v1/samples", answer)
    page.click("#draw-form button[type=submit]")
    alert = page.locator("#draw [role=alert]")
    expect(alert).to_contain_text("another model of this name now. Reload the page.")
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Reload the page.")
    page.unroute("**/v1/samples")
    error = {"message": "there is no model 'grey'", "code": "model_not_found"}
    page.route("**/v1/samples", lambda route: route.fulfill(status=404, json={"error": error}))
    page.click("nav [data-view=draw]")
    page.click("#draw-form button[type=submit]")
    expect(alert).to_contain_text("There is no model 'grey'. Reload the page.")


def fulfill(reply: dict[str, Any], route: Route) -> None:
    route.fulfill(**reply)


def test_failed_scene_restarts_when_view_is_shown(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["400", "403"])
    wait_until_drawn(page)
    status = page.locator("#scene-bits [data-status]")
    error = {"message": "no such thing", "code": "x"}
    replies: tuple[tuple[dict[str, Any], str], ...] = (
        ({"body": "<!doctype html>"}, "The server cannot be reached."),  # a network's sign-in page
        ({"status": 403, "json": {"error": "Forbidden"}}, "The server answered 403."),  # a proxy's
        ({"status": 400, "json": {"error": error}}, "No such thing."),
    )
    for reply, message in replies:
        page.route("**/v1/score", partial(fulfill, reply))
        page.click("nav [data-view=learn]")
        expect(status).to_contain_text(message)
        page.click("nav [data-view=draw]")
        page.unroute("**/v1/score")
    page.click("nav [data-view=learn]")
    expect(status).to_contain_text("bits instead of")


def test_game_continues_after_lost_guess(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED", "503"])
    wait_until_drawn(page)
    lost: list[str] = []

    def lose(route: Route) -> None:
        lost.append(route.request.url)
        if len(lost) == 1:
            route.abort()
        elif len(lost) == 2:
            error = {"message": "shutting down", "code": "closing"}
            route.fulfill(status=503, json={"error": error})
        else:
            route.continue_()

    page.route("**/v1/score", lose)  # before the view sends its first request
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    page.click("#play-choices >> text='zero'")
    expect(page.locator("#play-status")).to_contain_text("the model says")
    assert len(lost) > 2


def test_error_of_replaced_grid_is_not_shown(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["400"])
    wait_until_drawn(page)
    requested: list[Route] = []
    page.route("**/v1/score", lambda route: requested.append(route))
    heat = page.locator("#draw [data-action=heat]")
    with page.expect_request("**/v1/score"):
        heat.click()
    fill_setting(page, "#draw-seed", "6")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 6")
    requested[0].fulfill(status=400, json={"error": {"message": "no such thing", "code": "x"}})
    expect(heat).to_have_text("Heat maps")
    expect(page.locator("#draw [role=alert]")).to_have_count(0)
