"""Tests of the page of a server that draws at most two images per request."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.page.helpers import (
    Open,
    drawn_as,
    expect,
    follow_link,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, listening


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app_state, app = build({"max_images": 2}, {"grey": FakeDecoder(GREY, 8)})
    with listening(app, lambda: app_state.ready) as address:
        yield address


def test_draw_and_complete_clamp_numbers(visit: Open, url: str) -> None:
    page = visit("#draw?n=12", url=url)
    wait_until_drawn(page)
    expect(page.locator("#draw .image-grid li")).to_have_count(2)
    page.click("nav [data-view=complete]")
    wait_until_drawn(page, "complete")
    expect(page.locator("#complete .image-grid li")).to_have_count(3)  # with the input
    page.click("#complete-form summary")
    page.fill("#complete-n", "100")
    page.fill("#complete-seed", "1.4")
    page.click("#complete-form summary")  # where the browser could not show a validation message
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete-n")).to_have_value("2")
    label = page.locator("#complete .image-grid small").nth(1)
    expect(label).to_have_text("seed 11.00 bits per value")  # two lines: the seed is 1
    assert {"n=2", "seed=1"} <= set(url_hash(page).split("&"))


def test_game_has_five_pictures(visit: Open, url: str) -> None:
    page = visit("#play?seed=3", url=url)
    status = page.locator("#play-status")
    for k in range(5):
        fields = {"seed": 3 + k, "label": "random"}
        (image,) = httpx.post(f"{url}/v1/samples", json=fields, timeout=60).json()["images"]
        expect(status).to_contain_text(f"Picture {k + 1} of 5")
        page.click("#play-choices >> text='zero'")
        expect(status).to_contain_text(f"it was {drawn_as(image['label'])}.")
        expect(status).to_contain_text("the model says")
        if k < 4:
            page.click("#play-next")
    expect(page.locator("#play-recap li")).to_have_count(5)
    follow_link(page, "#play?seed=abc")
    expect(status).to_contain_text("A seed is a whole number")
    for part in ("recap", "squares"):
        expect(page.locator(f"#play-{part}")).to_be_hidden()
    expect(page.locator("#play-score")).to_be_empty()


def test_limits_scene(visit: Open, url: str) -> None:
    page = visit("#learn", url=url)
    page.click("#scene-limits button")
    expect(page.locator("#scene-limits .row canvas")).to_have_count(4)


def test_heat_maps_of_a_comparison(visit: Open, url: str) -> None:
    page = visit("#draw?n=2&seed=5&by=temperature", url=url)
    wait_until_drawn(page)
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw .image-grid .heatmap")).to_have_count(10)


def test_number_of_continuations(visit: Open, url: str) -> None:
    page = visit("#inside?seed=5&at=3", url=url)
    wait_until_measured(page)
    page.click("#whatif-form >> text='Continue in 2 ways'")
    expect(page.locator("#inside .image-grid li")).to_have_count(3)  # with the input
    wait_until_drawn(page, "inside")
