"""Tests of the toolbar of a finished image grid: sorting and heat maps."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.page.helpers import (
    Open,
    expect,
    open_settings,
    pixels,
    wait_until_drawn,
)
from tests.service.fixtures import GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def bits(page: Page) -> list[float]:
    return [
        float(re.search(r"(\d\.\d\d) bits per value", text)[1])  # type: ignore[index]
        for text in page.locator("#draw .image-grid small").all_text_contents()
    ]


def test_images_are_sorted_by_bits(visit: Open) -> None:
    page = visit("#draw?n=6&seed=5")
    wait_until_drawn(page)
    page.evaluate(  # the fake model gives every image the same likelihood
        """async () => {
            const { Tile } = await import("./static/tile.js");
            const tell = Tile.prototype.finish;
            Tile.prototype.finish = function (result) {
                tell.call(this, { ...result, bits_per_dim: 9 - (result.seed * 7) % 5 });
            };
        }"""
    )
    open_settings(page)
    page.click("#draw-form [data-dice]")
    wait_until_drawn(page)
    before = bits(page)
    page.click("#draw [data-action=sort]")
    expect(page.locator("#draw [data-action=sort]")).to_have_attribute("aria-pressed", "true")
    assert bits(page) == sorted(before)
    assert before != sorted(before)
    detail = page.locator("#draw .image-grid .detail").first
    expect(detail).to_be_hidden()
    page.click("#draw [data-action=details]")
    expect(detail).to_be_visible()
    second = page.locator("#draw .image-grid small").nth(1).inner_text()
    page.locator("#draw .image-grid button").first.click()
    page.keyboard.press("ArrowRight")  # in sorted order
    (seed,) = re.findall(r"seed (\d+)", second)
    expect(page.locator("#viewer-facts")).to_contain_text(f"Seed {seed} ·")
    page.keyboard.press("Escape")
    page.click("#draw [data-action=sort]")
    assert bits(page) == before


def test_row_title_is_shown_on_sorted_images(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&by=temperature")
    wait_until_drawn(page)
    rows = page.locator("#draw .image-grid small .row-title")
    expect(rows.nth(2)).to_be_hidden()
    page.click("#draw [data-action=sort]")
    expect(rows.nth(2)).to_be_visible()
    expect(page.locator("#draw .grid-toolbar")).to_contain_text(
        "surprised the model least comes first"
    )
    messages = page.locator("#draw .image-grid small").first.inner_text()
    (row,) = re.findall(r"Temperature [\d.]+", messages)
    button = page.locator("#draw .image-grid button").first
    assert re.fullmatch(rf"Image \d, {row}: enlarge", button.get_attribute("aria-label") or "")
    button.click()
    expect(page.locator("#viewer-facts")).to_contain_text(row)


def test_every_tile_shows_its_heatmap_and_names_its_class(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5&label=one")
    wait_until_drawn(page)
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw canvas.heatmap")).to_have_count(3)
    for heat in pixels(page, "#draw canvas.heatmap"):
        assert len(heat) == 4 * GREY.pixels
        assert len(set(zip(*[iter(heat)] * 4, strict=True))) > 3
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw canvas.heatmap")).to_have_count(0)
    button = page.locator("#draw .image-grid button").first
    expect(button).to_have_attribute("aria-label", "Image 1, drawn as a one: enlarge")
    button.click()
    picture = page.locator("#viewer-canvas")
    expect(picture).to_have_attribute("aria-label", "Image 1, drawn as a one, enlarged")


def test_heatmaps_toggled_while_measuring_are_shown_once(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/score", lambda route: held.append(route))
    with page.expect_request("**/v1/score"):
        page.click("#draw [data-action=heat]")
    page.click("#draw [data-action=heat]")
    with page.expect_request("**/v1/score"):
        page.click("#draw [data-action=heat]")
    for route in held:
        route.continue_()
    expect(page.locator("#draw canvas.heatmap").first).to_be_visible()
    expect(page.locator("#draw [data-action=heat]")).to_have_text("Heat maps")
    expect(page.locator("#draw canvas.heatmap")).to_have_count(2)


def test_failed_heatmaps_are_not_shown_as_pressed(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["500"])
    wait_until_drawn(page)
    error = {"message": "it broke", "type": "x", "param": None, "code": "x"}
    page.route("**/v1/score", lambda route: route.fulfill(status=500, json={"error": error}))
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw [role=alert]")).to_have_text("It broke.")
    expect(page.locator("#draw [data-action=heat]")).to_have_attribute("aria-pressed", "false")
