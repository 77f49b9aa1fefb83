"""Tests of looking ahead: several particles per picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.page.helpers import (
    Open,
    expect,
    fill_setting,
    follow_link,
    open_in_editor,
    pixels,
    set_slider,
    touch,
    url_hash,
    wait_until_drawn,
)
from tests.service.fixtures import GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def open_with_hole(visit: Open, **options: Any) -> Page:
    """Open the editor with a picture that has one erased pixel in the middle."""
    page = open_in_editor(visit, **options)
    set_slider(page, "#complete-rows", GREY.height - 1)
    set_slider(page, "#complete-brush", 1)
    touch(page, "#editor", 2, 2, GREY.width, GREY.height)
    return page


def test_shown_for_holes(visit: Open) -> None:
    page = open_with_hole(visit)
    expect(page.locator("#lookahead")).to_be_visible()
    expect(page.locator("#complete-particles")).to_have_value("8")
    options = page.locator("#complete-particles option").all_text_contents()
    assert options == ["off", "2 tries", "4 tries", "8 tries"], "at most the number of slots"
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete .image-grid li")).to_have_count(9)
    wait_until_drawn(page, "complete")
    assert "particles=8" in url_hash(page)
    expect(page.locator("#complete .image-grid small").nth(1)).to_contain_text("of 8 tries counted")
    link = url_hash(page)
    again = visit(link, allowed=["400", "422"])
    wait_until_drawn(again, "complete")
    assert pixels(again, "#complete .image-grid canvas") == pixels(
        page, "#complete .image-grid canvas"
    )
    follow_link(again, link.replace("particles=8", "particles=3"))
    expect(again.locator("#complete .image-grid small").nth(1)).to_contain_text(
        "of 3 tries counted"
    )
    expect(again.locator("#complete-particles")).to_have_value("3")
    assert "particles=3" in url_hash(again)
    wait_until_drawn(again, "complete")
    follow_link(again, link.replace("particles=8", "particles=9"))
    expect(again.locator("#complete [role=alert]")).to_contain_text("articles")


def test_guidance_halves_the_limit_and_a_warning_is_shown(visit: Open) -> None:
    page = open_with_hole(visit)
    page.locator("#complete-form summary").click()
    page.select_option("#complete-label", "one")
    set_slider(page, "#complete-sampling-guidance", 2)
    expect(page.locator("#complete-particles")).to_have_value("4")
    warning = "in 8 of 8 images one particle had all the weight"

    def warn(route: Route) -> None:
        reply = route.fetch()
        body = reply.text().replace('"warnings":[]', f'"warnings":["{warning}"]')
        route.fulfill(response=reply, body=body)

    page.route("**/v1/completions", warn)
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete .image-grid small").nth(1)).to_contain_text("of 4 tries counted")
    expect(page.locator("#complete [data-status-panel]")).to_contain_text(
        "Few tries fitted the part below the gap"
    )


def test_comparison_with_and_without(visit: Open) -> None:
    page = open_with_hole(visit)
    page.locator("#complete-form summary").click()
    page.fill("#complete-n", "3")
    page.click("#lookahead button")
    expect(page.locator("#complete .heading")).to_have_text(
        ["Without looking ahead", "Looking ahead, 8 tries each"]
    )
    wait_until_drawn(page, "complete")
    captions = page.locator("#complete .image-grid small").all_text_contents()[1:]
    assert ["tries" in text for text in captions] == [False] * 3 + [True] * 3
    seeds = [text.split()[1][:5] for text in captions]
    assert seeds[:3] == seeds[3:]
    again = visit(url_hash(page))
    wait_until_drawn(again, "complete")
    assert pixels(again, "#complete .image-grid canvas") == pixels(
        page, "#complete .image-grid canvas"
    )


def test_resent_pixels_replace_old_ones(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", reduced_motion="no-preference")
    fill_setting(page, "#draw-n", "1")
    page.select_option("#draw-pace", "0")
    wait_until_drawn(page)
    values = list(range(10, 10 + GREY.pixels))

    def answer(route: Route) -> None:
        reply = route.fetch()
        head, _, _ = reply.body().partition(b"event: pixels")
        image, completed = reply.body().split(b"event: image")[1].split(b"event: completed")
        first = {"index": 0, "position": 0, "values": [0] * GREY.pixels}
        then = {"index": 0, "position": 3, "values": values[3:9]}
        warning = "".join(
            f'id: {k + 1}\nevent: pixels\ndata: {{"updates": [{update}]}}\n\n'.replace("'", '"')
            for k, update in enumerate((first, then))
        )
        body = head + warning.encode() + b"event: image" + image + b"event: completed" + completed
        route.fulfill(response=reply, body=body)

    page.route("**/v1/samples", answer)
    page.click("#draw-form button[type=submit]")
    page.wait_for_function(
        """() => {
            const c = document.querySelector("#draw .image-grid canvas");
            return c.getContext("2d").getImageData(3, 0, 1, 1).data[0] === 13;
        }"""
    )
    shown = np.array(pixels(page, "#draw .image-grid canvas")[0]).reshape(-1, 4)[:, 0].tolist()
    assert shown == [0] * 3 + values[3:9] + [0] * (GREY.pixels - 9)
