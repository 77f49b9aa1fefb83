"""What goes wrong between page and server, and what the page makes of it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import httpx

from scanline.service.state import AppState
from tests.page.helpers import Open, expect, finished, measured, pixels
from tests.service.fixtures import GREY, FakeDecoder, build, idle, listening, until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def test_what_is_left_unfinished_says_so(visit: Open, grey: FakeDecoder) -> None:
    page = visit("#draw?n=3&seed=5")
    finished(page)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("broken")

    grey.before_step = fail
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [role=alert]")).to_contain_text("rawing failed")
    expect(page.locator("#draw .image-grid small")).to_have_text(["not drawn"] * 3)


def test_a_lost_connection_is_resumed(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    whole = pixels(page, "#draw .image-grid canvas")
    resumed: list[str | None] = []

    def cut(route: Route) -> None:
        reply = route.fetch()
        body = reply.body()
        route.fulfill(response=reply, body=body[: body.index(b"event: image")])

    def refuse_once(route: Route) -> None:
        resumed.append(route.request.headers.get("last-event-id"))
        if len(resumed) == 1:
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/samples", cut)
    page.route("**/events", refuse_once)
    page.fill("#draw-form [name=seed]", "5")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("Reconnecting")
    finished(page)
    assert pixels(page, "#draw .image-grid canvas") == whole
    assert len(resumed) == 2
    assert all(resumed)


def test_a_drawing_that_the_server_let_go_is_drawn_again(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["404"])
    finished(page)
    whole = pixels(page, "#draw .image-grid canvas")
    cuts: list[int] = []

    def cut_once(route: Route) -> None:
        cuts.append(1)
        if len(cuts) > 1:
            route.continue_()
            return
        reply = route.fetch()
        body = reply.body().replace(b"gen_", b"lost_")
        route.fulfill(response=reply, body=body[: body.index(b"event: pixels")])

    page.route("**/v1/samples", cut_once)
    page.fill("#draw-seed", "5")
    page.click("#draw-form button[type=submit]")
    finished(page)
    assert pixels(page, "#draw .image-grid canvas") == whole
    assert len(cuts) == 2


def test_a_server_that_is_replaced_draws_the_same_after_all(visit: Open) -> None:
    slow = FakeDecoder(GREY, 4)
    slow.before_step = lambda slots: time.sleep(0.3) if slow.steps[3:] else None
    first, app = build(decoders={"grey": slow})
    with listening(app, lambda: first.ready) as url:
        page = visit(
            "#draw?n=2&seed=5", url=url, allowed=["ERR_", "503"], reduced_motion="no-preference"
        )
        expect(page.locator("#draw .image-grid small").first).to_have_text("drawing")
        first.drain()
        expect(page.locator("#draw [data-report]")).to_contain_text("Reconnecting")
    second, app = build(decoders={"grey": FakeDecoder(GREY, 4)})
    port = int(url.rpartition(":")[2])
    with listening(app, lambda: second.ready, port):
        expect(page.locator("#draw [data-report]")).to_contain_text("a second", timeout=60_000)
        again = visit("#draw?n=2&seed=5", url=url)
        finished(again)
        assert pixels(page, "#draw .image-grid canvas") == pixels(again, "#draw .image-grid canvas")


def test_a_server_that_comes_back_at_the_last_try_draws_again(visit: Open) -> None:
    """It knows nothing of the drawing, but it is there."""
    slow = FakeDecoder(GREY, 4)
    app_state, app = build(decoders={"grey": slow})
    asked: list[str] = []

    def away(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) < 8:
            route.abort()
        else:
            error = {"message": "there is no generation", "code": "generation_not_found"}
            route.fulfill(status=404, json={"error": error})

    with listening(app, lambda: app_state.ready) as url:
        page = visit("#draw?n=2&seed=5", url=url, allowed=["ERR_FAILED", "404"])
        finished(page)
        whole = pixels(page, "#draw .image-grid canvas")
        slow.before_step = lambda slots: time.sleep(0.1)
        page.route("**/events", away)
        page.evaluate("""() => {
            const wait = window.setTimeout;
            window.setTimeout = (act, ms, ...rest) => wait(act, ms / 50, ...rest);
        }""")
        page.evaluate(CUT)
        page.fill("#draw-seed", "5")
        page.click("#draw-form button[type=submit]")
        expect(page.locator("#draw [data-report]")).to_contain_text("a second", timeout=30_000)
        assert len(asked) == 8
        assert pixels(page, "#draw .image-grid canvas") == whole
        page.context.close()


CUT = """() => {
  const whole = window.fetch;
  window.fetch = async (path, init) => {
    const reply = await whole(path, init);
    window.fetch = whole;
    const reader = reply.body.getReader();
    const { value } = await reader.read();
    reader.cancel();
    const body = new ReadableStream({
      start(to) {
        to.enqueue(value);
        setTimeout(() => to.error(new TypeError("network error")));
      },
    });
    return new Response(body, { headers: reply.headers });
  };
}"""


def test_a_drawing_cancelled_while_the_connection_was_lost_is_drawn_again(visit: Open) -> None:
    slow = FakeDecoder(GREY, 4)
    app_state, app = build({"grace_seconds": 0.2}, {"grey": slow})
    with listening(app, lambda: app_state.ready) as url:
        page = visit("#draw?n=2&seed=5", url=url)
        finished(page)
        whole = pixels(page, "#draw .image-grid canvas")
        slow.before_step = lambda slots: time.sleep(0.1)
        held: list[int] = []

        def hold_once(route: Route) -> None:
            if not held:
                until(lambda: idle(app_state), "the end of the grace")
            held.append(1)
            slow.before_step = lambda slots: None
            route.continue_()

        page.route("**/events", hold_once)
        page.evaluate(CUT)
        page.fill("#draw-seed", "5")
        page.click("#draw-form button[type=submit]")
        finished(page)
        assert held == [1]
        assert pixels(page, "#draw .image-grid canvas") == whole
        page.context.close()


def test_a_drawing_that_is_cancelled_twice_has_failed(visit: Open) -> None:
    page = visit("#inside?seed=5")
    measured(page)
    asked: list[int] = []

    def cancel(route: Route) -> None:
        asked.append(1)
        reply = route.fetch()
        body = reply.body().replace(b'"finish_reason":"length"', b'"finish_reason":"cancelled"')
        route.fulfill(response=reply, body=body)

    page.route("**/v1/samples", cancel)
    page.click("#inside-new")
    expect(page.locator("#inside .actions [data-report]")).to_have_text(
        "The drawing was cancelled."
    )
    expect(page.locator("#inside-caption")).not_to_contain_text("bits/dim")
    assert len(asked) == 2


def test_cancelling_waits_for_no_answer(visit: Open, grey: FakeDecoder) -> None:
    page = visit("#draw?n=1&seed=5", reduced_motion="no-preference")
    finished(page)
    grey.before_step = lambda slots: time.sleep(0.3)
    page.route("**/v1/generations/*", lambda route: None)  # never answered
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_have_text("drawing")
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.click("#draw [data-cancel]")
    expect(page.locator("#draw [data-report]")).to_contain_text("Cancelled")


def answer_first(page: Page, times: int, **reply: Any) -> list[int]:
    """Answer the first drawings asked for so; give a list that grows with each."""
    asked: list[int] = []

    def answer(route: Route) -> None:
        asked.append(1)
        if len(asked) > times:
            route.continue_()
        else:
            route.fulfill(**reply)

    page.route("**/v1/samples", answer)
    return asked


def test_a_proxy_whose_server_begins_anew_is_asked_again(visit: Open) -> None:
    page = visit(allowed=["502"])
    finished(page)
    asked = answer_first(page, 2, status=502, body="no server")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("Reconnecting in")
    finished(page)
    assert len(asked) == 3


def test_a_full_server_is_asked_again(visit: Open) -> None:
    page = visit(allowed=["429"])
    finished(page)
    error = {"message": "the queue is full", "type": "x", "param": None, "code": "queue_full"}
    full = {"status": 429, "headers": {"Retry-After": "1"}, "json": {"error": error}}
    asked = answer_first(page, 1, **full)
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("full. Trying again")
    finished(page)
    assert len(asked) == 2


def test_the_queue_is_told(
    visit: Open, grey: FakeDecoder, served: tuple[AppState, str, FakeDecoder]
) -> None:
    page = visit()
    finished(page)
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
        expect(page.locator("#draw [data-report]")).to_contain_text("1 image is ahead")
    finally:
        hold.set()  # or nothing would ever end
    finished(page)
    other.join()


def test_what_is_still_so_is_not_told_again(visit: Open) -> None:
    page = visit(allowed=["503"])
    finished(page)
    asked: list[int] = []

    def refuse(route: Route) -> None:
        asked.append(1)
        if len(asked) > 3:
            route.continue_()
        else:
            error = {"message": "loading", "type": "server_error", "code": "not_ready"}
            route.fulfill(status=503, json={"error": error})

    page.route("**/v1/models", refuse)
    page.add_init_script("""document.addEventListener("DOMContentLoaded", () => {
        window.told = [];
        new MutationObserver((all) => window.told.push(
            ...all.flatMap(({ addedNodes }) => [...addedNodes].map((node) => node.textContent))))
            .observe(document.querySelector("#loading [role=status]"), { childList: true });
    });""")
    page.reload()
    finished(page)
    assert page.evaluate("window.told") == ["The models are loading …"]


def test_a_model_that_is_not_here_is_said_to_be(visit: Open) -> None:
    page = visit("#draw?model=ghost&seed=5&n=1")
    finished(page)
    expect(page.locator("#loading")).to_contain_text("no model “ghost” here")
    page.select_option("#model", "colour")
    expect(page.locator("#loading")).to_be_hidden()
    finished(page)


def test_a_model_that_is_another_by_now_is_said_to_be(visit: Open) -> None:
    """After a server that began anew: its pixels would be laid out wrongly, or wanted for ever."""
    page = visit("#draw?n=1&seed=5", allowed=["404"])
    finished(page)

    def answer(route: Route) -> None:
        reply = route.fetch()
        wider = reply.text().replace(f'"width":{GREY.width}', f'"width":{GREY.width + 3}', 1)
        route.fulfill(response=reply, body=wider)

    page.route("**/v1/samples", answer)
    page.click("#draw-form button[type=submit]")
    told = page.locator("#draw [role=alert]")
    expect(told).to_contain_text("another model of this name now. Reload the page.")
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Reload the page.")
    page.unroute("**/v1/samples")
    error = {"message": "there is no model 'grey'", "code": "model_not_found"}
    page.route("**/v1/samples", lambda route: route.fulfill(status=404, json={"error": error}))
    page.click("nav [data-view=draw]")
    page.click("#draw-form button[type=submit]")
    expect(told).to_contain_text("There is no model 'grey'. Reload the page.")


def test_a_game_goes_on_though_a_guess_was_lost(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED", "503"])
    finished(page)
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

    page.route("**/v1/score", lose)  # before the view asks: its questions may be answered at once
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    page.click("#play-choices >> text='zero'")
    expect(page.locator("#play-status")).to_contain_text("the model says")
    assert len(lost) > 2


def test_a_scene_that_failed_begins_anew_when_it_is_looked_at_again(visit: Open) -> None:
    page = visit(allowed=["400"])
    finished(page)
    error = {"message": "no such thing", "code": "x"}
    page.route("**/v1/score", lambda route: route.fulfill(status=400, json={"error": error}))
    page.click("nav [data-view=learn]")
    said = page.locator("#scene-bits [data-status]")
    expect(said).to_contain_text("No such thing.")
    page.click("nav [data-view=draw]")
    page.unroute("**/v1/score")
    page.click("nav [data-view=learn]")
    expect(said).to_contain_text("bits instead of")


def test_what_failed_of_a_sheet_that_is_gone_is_not_told_of_the_next(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["400"])
    finished(page)
    asked: list[Route] = []
    page.route("**/v1/score", lambda route: asked.append(route))
    heat = page.locator("#draw [data-action=heat]")
    with page.expect_request("**/v1/score"):
        heat.click()
    page.fill("#draw-seed", "6")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 6")
    asked[0].fulfill(status=400, json={"error": {"message": "no such thing", "code": "x"}})
    expect(heat).to_have_text("Heat maps")
    expect(page.locator("#draw [role=alert]")).to_have_count(0)
