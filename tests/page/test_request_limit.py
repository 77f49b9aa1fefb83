"""Tests of the page of a server that draws at most two images per request."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.page.helpers import Open, drawn_as, expect, wait_until_drawn, wait_until_measured
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, listening


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    app_state, app = build({"max_images": 2}, {"grey": FakeDecoder(GREY, 8)})
    with listening(app, lambda: app_state.ready) as address:
        yield address


def test_draw_and_complete_clamp_the_number_of_images(visit: Open, url: str) -> None:
    page = visit("#draw?n=12", url=url)
    wait_until_drawn(page)
    expect(page.locator("#draw .image-grid li")).to_have_count(2)
    page.click("nav [data-view=complete]")
    wait_until_drawn(page, "complete")
    expect(page.locator("#complete .image-grid li")).to_have_count(3)  # with the input


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
