"""Comparing: the same seeds with another value a row, sorted, with heat maps; and what was kept."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.page.helpers import Open, expect, finished, hash_of, measured, pixels
from tests.service.fixtures import COLOUR, GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page


def drawn(page: Page) -> list[list[int]]:
    return pixels(page, "#draw .image-grid li:not(.heading) canvas:not(.heatmap)")


@pytest.mark.parametrize(
    ("axis", "rows"),
    [
        ("temperature", [f"Temperature {t}" for t in (0.85, 0.9, 1, 1.1, 1.2)]),
        ("guidance", [f"Guidance {g}" for g in (1, 2, 3, 5, 8)]),
        ("label", ["zero", "one", "a frog"]),
        ("model", ["grey", "colour"]),
    ],
)  # fmt: skip
def test_the_same_seeds_are_drawn_in_rows(visit: Open, axis: str, rows: list[str]) -> None:
    page = visit(f"#draw?n=3&seed=5&by={axis}")
    expect(page.locator("#draw .heading")).to_have_text(rows)
    finished(page)
    captions = page.locator("#draw .image-grid small").all_text_contents()
    seeds = [part for text in captions for part in re.findall(r"seed \d", text)]
    assert seeds == ["seed 5", "seed 6", "seed 7"] * len(rows)
    tops = page.eval_on_selector_all(
        "#draw .image-grid li:not(.heading)", "all => all.map(e => e.offsetTop)"
    )
    assert all(len(set(row)) == 1 for row in zip(*[iter(tops)] * 3, strict=True)), "a row each"
    shown = drawn(page)
    again = visit(hash_of(page))
    finished(again)
    assert drawn(again) == shown
    if axis != "label":
        return
    page.locator("#draw .image-grid button").nth(4).click()  # seed 6, a one
    page.click("#viewer .close")
    alone = visit("#draw?n=1&seed=6&label=one")
    finished(alone)
    assert drawn(alone) == [shown[4]]


def test_a_comparison_is_chosen(visit: Open) -> None:
    page = visit("#draw?n=12&seed=5")
    finished(page)
    page.select_option("#draw-by", "temperature")
    expect(page.locator("#draw .heading")).to_have_count(5)
    expect(page.locator("#draw .image-grid li:not(.heading)")).to_have_count(5 * 8)
    expect(page.locator("#draw-n")).to_have_value("12")  # for when nothing is compared
    finished(page)
    assert "by=temperature" in hash_of(page)
    expect(page.locator("#draw [data-copy=curl]")).to_be_hidden()
    page.select_option("#draw-by", "")
    expect(page.locator("#draw .heading")).to_have_count(0)
    expect(page.locator("#draw [data-copy=curl]")).to_be_visible()


@pytest.mark.parametrize("button", ["inside", "complete"])
def test_an_image_of_another_model_is_taken_further_with_that(visit: Open, button: str) -> None:
    page = visit("#draw?model=grey&n=2&seed=5&by=model")
    finished(page)
    page.locator("#draw .image-grid button").nth(3).click()
    expect(page.locator("#viewer-facts")).to_contain_text("colour")
    page.click(f"#viewer-{button}")
    if button == "inside":
        measured(page)
    else:
        finished(page, "complete")
    assert "model=colour" in hash_of(page)
    expect(page.locator("#model")).to_have_value("colour")
    canvas = {"inside": "#inside-picture", "complete": "#editor"}[button]
    assert len(pixels(page, canvas)[0]) == 4 * COLOUR.pixels


def test_what_a_comparison_does_not_heed_is_said_and_not_in_its_link(visit: Open) -> None:
    page = visit("#draw?model=grey&n=2&seed=5&label=one&guidance=3")
    finished(page)
    said = page.locator("#draw-by-hint")
    for by, unheeded, words in (
        ("label", {"label"}, "The class chosen above is not used"),
        ("model", {"label", "guidance", "top_p"}, "Class, guidance and top-p are not used"),
        ("temperature", set(), ""),
    ):
        page.select_option("#draw-by", by)
        finished(page)
        expect(said).to_contain_text(words) if words else expect(said).to_be_hidden()
        named = {part.split("=")[0] for part in hash_of(page).split("?")[1].split("&")}
        assert not named & unheeded
        assert by != "temperature" or {"label", "guidance"} <= named


def test_a_model_is_compared_by_what_it_has(visit: Open) -> None:
    page = visit("#draw?model=colour&n=2&seed=5")
    finished(page)
    values = page.eval_on_selector_all("#draw-by option", "all => all.map(o => o.value)")
    assert values == ["", "temperature", "top_p", "model"]


def bits(page: Page) -> list[float]:
    return [
        float(re.search(r"(\d\.\d\d) bits/dim", text)[1])  # type: ignore[index]
        for text in page.locator("#draw .image-grid small").all_text_contents()
    ]


def test_images_are_sorted_by_what_they_cost(visit: Open) -> None:
    page = visit("#draw?n=6&seed=5")
    finished(page)
    page.evaluate(  # the fake model finds every image as likely as another
        """async () => {
            const { Tile } = await import("./static/tile.js");
            const tell = Tile.prototype.finish;
            Tile.prototype.finish = function (result) {
                tell.call(this, { ...result, bits_per_dim: 9 - (result.seed * 7) % 5 });
            };
        }"""
    )
    page.click("#draw-form [data-dice]")
    finished(page)
    before = bits(page)
    page.click("#draw [data-action=sort]")
    expect(page.locator("#draw [data-action=sort]")).to_have_attribute("aria-pressed", "true")
    assert bits(page) == sorted(before)
    assert before != sorted(before)
    second = page.locator("#draw .image-grid small").nth(1).inner_text()
    page.locator("#draw .image-grid button").first.click()
    page.keyboard.press("ArrowRight")  # in the order that is shown
    (seed,) = re.findall(r"seed (\d+)", second)
    expect(page.locator("#viewer-facts")).to_contain_text(f"Seed {seed} ·")
    page.keyboard.press("Escape")
    page.click("#draw [data-action=sort]")
    assert bits(page) == before


def test_what_is_compared_is_told_of_each_image(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&by=temperature")
    finished(page)
    rows = page.locator("#draw .image-grid small .row-title")
    expect(rows.nth(2)).to_be_hidden()
    page.click("#draw [data-action=sort]")
    expect(rows.nth(2)).to_be_visible()
    told = page.locator("#draw .image-grid small").first.inner_text()
    (row,) = re.findall(r"Temperature [\d.]+", told)
    button = page.locator("#draw .image-grid button").first
    assert f", {row}, seed" in (button.get_attribute("aria-label") or "")
    button.click()
    expect(page.locator("#viewer-facts")).to_contain_text(row)


def test_every_tile_shows_its_heat_map(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5&label=one")
    finished(page)
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw canvas.heatmap")).to_have_count(3)
    for heat in pixels(page, "#draw canvas.heatmap"):
        assert len(heat) == 4 * GREY.pixels
        assert len(set(zip(*[iter(heat)] * 4, strict=True))) > 3
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw canvas.heatmap")).to_have_count(0)


def test_heat_maps_that_did_not_come_are_not_shown_as_chosen(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["500"])
    finished(page)
    error = {"message": "it broke", "type": "x", "param": None, "code": "x"}
    page.route("**/v1/score", lambda route: route.fulfill(status=500, json={"error": error}))
    page.click("#draw [data-action=heat]")
    expect(page.locator("#draw [role=alert]")).to_have_text("It broke.")
    expect(page.locator("#draw [data-action=heat]")).to_have_attribute("aria-pressed", "false")


def test_what_was_drawn_before_comes_back(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    finished(page)
    first = drawn(page)
    page.fill("#draw-seed", "77")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 77")
    finished(page)
    strip = page.locator("[data-strip=drawn] img")
    expect(strip).to_have_count(2)
    expect(strip.nth(1)).to_have_attribute("alt", "Draw again: grey, seed 5")
    page.reload()
    expect(strip).to_have_count(2)
    strip.nth(1).click()
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 5")
    finished(page)
    assert drawn(page) == first


def test_a_link_followed_while_another_opens_is_not_lost(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    finished(page)
    # The first is being opened when the address changes again, of which the page is told later.
    page.evaluate("""() => {
        history.replaceState(null, "", "#draw?n=1&seed=77");
        dispatchEvent(new HashChangeEvent("hashchange"));
        location.hash = "#draw?n=1&seed=6";
    }""")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 6")
    finished(page)
    assert "seed=6" in page.url


def test_what_was_drawn_can_be_pressed_while_more_is_remembered(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    finished(page)
    page.goto(page.url.replace("seed=5", "seed=77"))
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 77")
    finished(page)
    page.get_by_alt_text("Draw again: grey, seed 5").hover()
    page.mouse.down()
    page.evaluate("dispatchEvent(new StorageEvent('storage', { key: 'scanline-drawn' }))")
    page.mouse.up()
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 5")


def test_what_was_drawn_makes_room_for_what_is_kept(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    finished(page)
    for seed in (6, 7, 8):
        page.evaluate(f"location.hash = '#draw?n=1&seed={seed}'")
        expect(page.locator("[data-strip=drawn] img")).to_have_count(seed - 4)
    page.evaluate(
        """() => {
            const most = JSON.stringify(localStorage).length;
            const store = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, value) {
                if (value.length > most - 100) throw new DOMException("full", "QuotaExceededError");
                store.call(this, name, value);
            };
        }"""
    )
    page.click("#draw .image-grid button")
    page.click("#viewer-keep")
    page.reload()
    expect(page.locator("[data-strip=kept] img")).to_have_count(1)
    assert 0 < page.locator("[data-strip=drawn] img").count() < 4


def test_favourites_are_kept_in_the_browser(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    finished(page)
    expect(page.locator("[data-strip=kept]")).to_be_hidden()
    page.locator("#draw .image-grid button").nth(1).click()
    page.click("#viewer-keep")
    expect(page.locator("#viewer-keep")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    page.reload()
    kept = page.locator("[data-strip=kept] img")
    expect(kept).to_have_count(1)
    finished(page)
    page.click("#gallery .secondary")
    expect(page.locator("[data-strip=drawn] img")).to_have_count(0)
    expect(kept).to_have_count(1)
    second = drawn(page)[1]
    kept.click()
    expect(page.locator("#draw .image-grid li")).to_have_count(1)
    finished(page)
    assert drawn(page) == [second]
    page.locator("#draw .image-grid button").click()
    page.click("#viewer-keep")
    page.keyboard.press("Escape")
    expect(kept).to_have_count(0)
    page.click("#gallery .secondary")
    expect(page.locator("#gallery")).to_be_hidden()


def test_what_is_kept_is_at_hand_wherever_pictures_are_made(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    finished(page)
    page.click("nav [data-view=complete]")
    finished(page, "complete")
    page.locator("#complete .image-grid button").first.click()
    page.click("#viewer-keep")
    page.keyboard.press("Escape")
    kept = page.locator("[data-strip=kept] a")
    for view in ("complete", "inside"):
        page.click(f"nav [data-view={view}]")
        expect(page.locator(f"#{view} [data-strip=kept] img")).to_be_visible()
    page.click("nav [data-view=play]")
    expect(page.locator("#gallery")).to_be_hidden()
    page.click("nav [data-view=draw]")
    kept.press("Enter")
    expect(page.locator("#complete .image-grid li")).to_have_count(2)  # with what was given
    expect(page.locator("#complete [data-strip=kept] img")).to_be_visible()
    expect(page.locator("#main")).to_be_focused()
    page.press("[data-strip=drawn] .secondary", "Enter")
    expect(kept).to_be_focused()


def test_a_damaged_store_is_left_aside(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        script="localStorage.length || localStorage.setItem('scanline-drawn', '{\"drawn\": 3}');",
    )
    finished(page)
    expect(page.locator("[data-strip=drawn] img")).to_have_count(1)
