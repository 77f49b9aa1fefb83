"""Tests of the API key prompt and of forbidden storage."""

from __future__ import annotations

import pytest

from tests.page.helpers import Open, expect, wait_until_drawn
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, listening


@pytest.mark.parametrize("secret", ["“open sesame”", "schlüssel"])  # beyond Latin-1, and within
def test_key_is_prompted_once(visit: Open, secret: str) -> None:
    app_state, app = build({"api_key": secret}, {"grey": FakeDecoder(GREY, 4)})
    with listening(app, lambda: app_state.ready) as url:
        page = visit(url=url, allowed=["401"])
        expect(page.locator("#key-dialog")).to_be_visible()
        expect(page.locator("#key-wrong")).to_be_hidden()
        page.fill("#key", "”wrong“")
        page.keyboard.press("Enter")
        expect(page.locator("#key-wrong")).to_be_visible()
        page.fill("#key", secret)
        page.keyboard.press("Enter")
        wait_until_drawn(page)
        page.reload()
        wait_until_drawn(page)
        page.context.close()


def test_declined_prompt_is_not_repeated(visit: Open) -> None:
    app_state, app = build({"api_key": "open sesame"}, {"grey": FakeDecoder(GREY, 4)})
    with listening(app, lambda: app_state.ready) as url:
        page = visit(url=url, allowed=["401"])
        page.click("text=Not now")
        expect(page.locator("#loading")).to_contain_text("needs an API key")
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.wait_for_timeout(1200)  # longer than the retry interval
        assert requested == []
        expect(page.locator("#key-dialog")).to_be_hidden()
        page.click("#enter-key")
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        wait_until_drawn(page)
        page.evaluate("location.hash = '#draw?model=ghost&n=1&seed=5'")
        expect(page.locator("#loading")).to_contain_text("no model “ghost”")
        expect(page.locator("#enter-key")).to_be_hidden()
        page.context.close()


def test_prompt_is_repeated_after_next_click(visit: Open) -> None:
    page = visit(allowed=["401"])
    wait_until_drawn(page)
    error = {"message": "send the key", "code": "invalid_api_key"}
    page.route("**/v1/samples", lambda route: route.fulfill(status=401, json={"error": error}))
    for _ in range(2):
        page.click("#draw-form button[type=submit]")
        expect(page.locator("#key-dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#draw [role=alert]")).to_contain_text("needs an API key")


FORBIDDEN = """for (const name of ["sessionStorage", "localStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError"); } });
}"""


def test_page_works_without_storage(visit: Open) -> None:
    app_state, app = build({"api_key": "open sesame"}, {"grey": FakeDecoder(GREY, 4)})
    with listening(app, lambda: app_state.ready) as url:
        page = visit("#draw?n=1&seed=5", url=url, allowed=["401"], script=FORBIDDEN)
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        wait_until_drawn(page)
        page.click("#draw-form button[type=submit]")
        drawn = page.locator("#gallery [data-strip=drawn] li")
        expect(drawn).to_have_count(2)  # the gallery works in memory
        page.context.close()
