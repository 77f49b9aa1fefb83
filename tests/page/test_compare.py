"""Tests of comparisons: rows with the same seeds and another value of one field."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.page.helpers import (
    Open,
    change_models,
    expect,
    follow_link,
    open_settings,
    pixels,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fixtures import COLOUR

if TYPE_CHECKING:
    from playwright.sync_api import Page


def drawn(page: Page) -> list[list[int]]:
    return pixels(page, "#draw .image-grid li:not(.heading) canvas:not(.heatmap)")


def test_link_of_a_comparison_by_class_keeps_its_guidance(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    page.evaluate("history.replaceState(null, '', '#draw?n=1&seed=5&by=label&guidance=5')")
    change_models(page, lambda reply: reply["data"][0].update(guidance=2.0))
    wait_until_drawn(page)
    assert "guidance=5" in url_hash(page)
    with page.expect_request("**/v1/samples") as request:
        page.click("#draw-form button[type=submit]")
    assert json.loads(request.value.post_data or "")["guidance"] == 5


def test_rows_have_the_same_seeds(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    for axis, rows in (
        ("temperature", [f"Temperature {t}" for t in (0.85, 0.9, 1, 1.1, 1.2)]),
        ("guidance", [f"Guidance {g}" for g in (1, 2, 3, 5, 8)]),
        ("model", ["grey", "colour"]),
        ("label", ["zero", "one", "a frog"]),
    ):
        follow_link(page, f"#draw?n=3&seed=5&by={axis}")
        expect(page.locator("#draw .heading")).to_have_text(rows)
        wait_until_drawn(page)
        captions = page.locator("#draw .image-grid small").all_text_contents()
        seeds = [part for text in captions for part in re.findall(r"seed \d", text)]
        assert seeds == ["seed 5", "seed 6", "seed 7"] * len(rows)
        tops = page.eval_on_selector_all(
            "#draw .image-grid li:not(.heading)", "all => all.map(e => e.offsetTop)"
        )
        one_row_per_value = zip(*[iter(tops)] * 3, strict=True)
        assert all(len(set(row)) == 1 for row in one_row_per_value), axis
    shown = drawn(page)
    again = visit(url_hash(page))
    wait_until_drawn(again)
    assert drawn(again) == shown
    follow_link(again, "#draw?n=1&seed=6&label=one")
    expect(again.locator("#draw .image-grid li")).to_have_count(1)
    wait_until_drawn(again)
    assert drawn(again) == [shown[4]]


def test_comparison_is_selected_in_form(visit: Open) -> None:
    page = visit("#draw?n=12&seed=5")
    wait_until_drawn(page)
    open_settings(page)
    page.select_option("#draw-by", "temperature")
    expect(page.locator("#draw .heading")).to_have_count(5)
    expect(page.locator("#draw .image-grid li:not(.heading)")).to_have_count(5 * 8)
    expect(page.locator("#draw-n")).to_have_value("8")  # as many as are drawn
    wait_until_drawn(page)
    assert "by=temperature" in url_hash(page)
    expect(page.locator("#draw [data-copy=curl]")).to_have_attribute("hidden", "")
    open_settings(page)
    page.select_option("#draw-by", "")
    expect(page.locator("#draw .heading")).to_have_count(0)
    expect(page.locator("#draw-n")).to_have_value("12")
    page.click("#draw [data-share-open]")
    expect(page.locator("#draw [data-copy=curl]")).to_be_visible()


def test_opening_image_of_other_model_switches_model(visit: Open) -> None:
    page = visit("#draw?model=grey&n=2&seed=5&by=model")
    wait_until_drawn(page)
    for view, canvas in (("inside", "#inside-picture"), ("complete", "#editor")):
        page.locator("#draw .image-grid button").nth(3).click()
        expect(page.locator("#viewer-facts")).to_contain_text("colour")
        page.click(f"#viewer-{view}")
        if view == "inside":
            wait_until_measured(page)
        else:
            wait_until_drawn(page, view)
        assert "model=colour" in url_hash(page)
        expect(page.locator("#model-field :checked")).to_have_value("colour")
        assert len(pixels(page, canvas)[0]) == 4 * COLOUR.pixels
        page.go_back()
        expect(page.locator("#model-field :checked")).to_have_value("grey")
        wait_until_drawn(page)


def test_ignored_fields_are_explained_and_not_in_link(visit: Open) -> None:
    page = visit("#draw?model=grey&n=2&seed=5&label=one&guidance=3")
    wait_until_drawn(page)
    status = page.locator("#draw-by-hint")
    for by, unheeded, words in (
        ("label", {"label"}, "The class chosen above is not used"),
        ("model", {"label", "guidance", "top_p"}, "Class, guidance and top-p are not used"),
        ("temperature", set(), ""),
    ):
        open_settings(page)
        page.select_option("#draw-by", by)
        wait_until_drawn(page)
        expect(status).to_contain_text(words) if words else expect(status).to_be_hidden()
        named = {part.split("=")[0] for part in url_hash(page).split("?")[1].split("&")}
        assert not named & unheeded
        assert by != "temperature" or {"label", "guidance"} <= named
