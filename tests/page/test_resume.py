"""Tests of lost connections during a drawing: resuming, restarting and cancelling."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from tests.page.helpers import (
    Open,
    expect,
    pixels,
    set_value,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import (
    DEADLINE,
    GREY,
    build,
    idle,
    listening,
    until,
)

if TYPE_CHECKING:
    from playwright.sync_api import Route


def cut_stream(route: Route) -> None:
    """Answer with the stream up to its first finished image."""
    reply = route.fetch()
    body = reply.body()
    route.fulfill(response=reply, body=body[: body.index(b"event: image")])


def test_lost_connection_is_resumed(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    whole = pixels(page, "#draw .image-grid canvas")
    resumed: list[str | None] = []

    def refuse_once(route: Route) -> None:
        resumed.append(route.request.headers.get("last-event-id"))
        if len(resumed) == 1:
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/samples", cut_stream)
    page.route("**/events", refuse_once)
    set_value(page, "#draw-form [name=seed]", "5")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-status-panel]")).to_contain_text("Reconnecting")
    wait_until_drawn(page)
    assert pixels(page, "#draw .image-grid canvas") == whole
    assert len(resumed) == 2
    assert all(resumed)


def test_resumed_stream_has_the_same_fields(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    page.route("**/v1/samples", cut_stream)
    with page.expect_request("**/events*") as resumed:
        image = page.evaluate(
            """async () => {
                const { followGeneration } = await import("./static/stream.js");
                const fields = { model: "grey", seed: 5, granularity: "row", output: "values" };
                const images = [];
                await followGeneration({ fields },
                    ({ name, data }) => name === "image" && images.push(data),
                    () => {}, new AbortController().signal);
                return images[0];
            }"""
        )
    assert resumed.value.url.endswith("/events?granularity=row&output=values")
    assert len(image["values"]) == GREY.pixels


def test_forgotten_generation_restarts(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["404"])
    wait_until_drawn(page)
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
    set_value(page, "#draw-seed", "5")
    page.click("#draw-form button[type=submit]")
    wait_until_drawn(page)
    assert pixels(page, "#draw .image-grid canvas") == whole
    assert len(cuts) == 2


def test_replaced_server_draws_the_same(visit: Open) -> None:
    slow = FakeDecoder(GREY, 4)
    slow.before_step = lambda slots: time.sleep(0.3) if slow.steps[3:] else None
    first, app = build(decoders={"grey": slow})
    with listening(app, lambda: first.ready) as url:
        page = visit(
            "#draw?n=2&seed=5", url=url, allowed=["ERR_", "503"], reduced_motion="no-preference"
        )
        expect(page.locator("#draw .image-grid small").first).to_have_text("drawing")
        first.drain()
        expect(page.locator("#draw [data-status-panel]")).to_contain_text("Reconnecting")
    second, app = build(decoders={"grey": FakeDecoder(GREY, 4)})
    port = int(url.rpartition(":")[2])
    with listening(app, lambda: second.ready, port):
        expect(page.locator("#draw [data-status-panel]")).to_contain_text(
            "a second", timeout=60_000
        )
        again = visit("#draw?n=2&seed=5", url=url)
        wait_until_drawn(again)
        assert pixels(page, "#draw .image-grid canvas") == pixels(again, "#draw .image-grid canvas")


def test_server_back_at_last_try_draws_again(visit: Open) -> None:
    """The new server does not know the generation, so it starts again."""
    slow = FakeDecoder(GREY, 4)
    app_state, app = build(decoders={"grey": slow})
    requested: list[str] = []
    go_on = threading.Event()

    def away(route: Route) -> None:
        go_on.set()
        requested.append(route.request.url)
        if len(requested) < 8:
            route.abort()
        else:
            error = {"message": "there is no generation", "code": "generation_not_found"}
            route.fulfill(status=404, json={"error": error})

    with listening(app, lambda: app_state.ready) as url:
        page = visit("#draw?n=2&seed=5", url=url, allowed=["ERR_FAILED", "404"])
        wait_until_drawn(page)
        whole = pixels(page, "#draw .image-grid canvas")
        begun = len(slow.steps)
        # Hold the drawing until the page has lost its stream.
        slow.before_step = lambda slots: (
            (go_on.wait(DEADLINE), None)[1] if len(slow.steps) > begun + 2 else None
        )
        page.route("**/events", away)
        page.evaluate("""() => {
            const wait = window.setTimeout;
            window.setTimeout = (act, ms, ...rest) => wait(act, ms / 50, ...rest);
        }""")
        page.evaluate(CUT)
        set_value(page, "#draw-seed", "5")
        page.click("#draw-form button[type=submit]")
        expect(page.locator("#draw [data-status-panel]")).to_contain_text(
            "a second", timeout=30_000
        )
        assert len(requested) == 8
        assert pixels(page, "#draw .image-grid canvas") == whole
        page.context.close()


# Cuts the next reply after its first chunk. The decoder must be held meanwhile, or this chunk may
# have the whole drawing, and nothing is left to resume.
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


def test_generation_cancelled_during_lost_connection_restarts(visit: Open) -> None:
    slow = FakeDecoder(GREY, 4)
    app_state, app = build({"grace_seconds": 0.2}, {"grey": slow})
    with listening(app, lambda: app_state.ready) as url:
        page = visit("#draw?n=2&seed=5", url=url)
        wait_until_drawn(page)
        whole = pixels(page, "#draw .image-grid canvas")
        slow.before_step = lambda slots: time.sleep(1)
        held: list[int] = []

        def hold_once(route: Route) -> None:
            if not held:
                until(lambda: idle(app_state), "the end of the grace period")
            held.append(1)
            slow.before_step = lambda slots: None
            route.continue_()

        page.route("**/events", hold_once)
        page.evaluate(CUT)
        set_value(page, "#draw-seed", "5")
        page.click("#draw-form button[type=submit]")
        wait_until_drawn(page)
        assert held == [1]
        assert pixels(page, "#draw .image-grid canvas") == whole
        page.context.close()


def test_generation_cancelled_twice_fails(visit: Open) -> None:
    page = visit("#inside?seed=5")
    wait_until_measured(page)
    requested: list[int] = []

    def cancel(route: Route) -> None:
        requested.append(1)
        reply = route.fetch()
        body = reply.body().replace(b'"finish_reason":"length"', b'"finish_reason":"cancelled"')
        route.fulfill(response=reply, body=body)

    page.route("**/v1/samples", cancel)
    page.click("#inside-new")
    expect(page.locator("#inside .actions [data-status-panel]")).to_have_text(
        "The drawing was cancelled."
    )
    expect(page.locator("#inside-caption")).not_to_contain_text("bits per value")
    assert len(requested) == 2


def test_cancel_does_not_wait_for_response(visit: Open, grey: FakeDecoder) -> None:
    page = visit("#draw?n=1&seed=5", reduced_motion="no-preference")
    wait_until_drawn(page)
    grey.before_step = lambda slots: time.sleep(0.3)
    page.route("**/v1/generations/*", lambda route: None)  # never answers
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_have_text("drawing")
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.click("#draw [data-cancel]")
    expect(page.locator("#draw [data-status-panel]")).to_contain_text("Cancelled")


def test_cancel_while_reconnecting_reaches_the_server(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    wait_until_drawn(page)
    page.route("**/v1/samples", cut_stream)
    page.route("**/events", lambda route: route.abort())
    page.route("**/v1/generations/*", lambda route: None)
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-status-panel]")).to_contain_text(
        re.compile("Reconnecting in [23] s")  # long enough to cancel meanwhile
    )
    with page.expect_request(lambda request: request.method == "DELETE"):
        page.click("#draw [data-cancel]")
