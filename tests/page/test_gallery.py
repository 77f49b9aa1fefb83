"""Tests of the gallery: previous and kept drawings in local storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.page.helpers import (
    Open,
    expect,
    fill_setting,
    pixels,
    press_enter,
    wait_until_drawn,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page


def drawn(page: Page) -> list[list[int]]:
    return pixels(page, "#draw .image-grid li:not(.heading) canvas:not(.heatmap)")


def test_previous_drawing_is_drawn_again(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    first = drawn(page)
    fill_setting(page, "#draw-seed", "77")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 77")
    wait_until_drawn(page)
    strip = page.locator("[data-strip=drawn] img")
    expect(strip).to_have_count(2)
    text = "Draw again: 2 pictures by grey, seed 5"
    expect(strip.nth(1)).to_have_attribute("alt", text)
    expect(strip.nth(1)).to_have_attribute("title", text)
    page.reload()
    expect(strip).to_have_count(2)
    strip.nth(1).click()
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 5")
    wait_until_drawn(page)
    assert drawn(page) == first


def test_full_storage_drops_drawings_before_kept_images(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
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


def test_kept_images_survive_reload(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    expect(page.locator("[data-strip=kept]")).to_be_hidden()
    page.locator("#draw .image-grid button").nth(1).click()
    page.click("#viewer-keep")
    expect(page.locator("#viewer-keep")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    page.reload()
    kept = page.locator("[data-strip=kept] img")
    expect(kept).to_have_count(1)
    wait_until_drawn(page)
    second = drawn(page)[1]
    kept.click()
    expect(page.locator("#draw .image-grid li")).to_have_count(1)
    wait_until_drawn(page)
    assert drawn(page) == [second]
    page.click("#gallery .secondary")
    expect(page.locator("[data-strip=drawn] img")).to_have_count(0)
    expect(kept).to_have_count(1)
    page.locator("#draw .image-grid button").click()
    page.click("#viewer-keep")
    page.keyboard.press("Escape")
    expect(kept).to_have_count(0)
    expect(page.locator("#gallery")).to_be_hidden()


def test_only_earlier_drawings_are_shown_and_stay_clickable_during_an_update(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    strip = page.locator("[data-strip=drawn]")
    expect(strip.locator("img")).to_have_count(1)
    expect(strip).to_be_hidden()
    page.reload()
    wait_until_drawn(page)
    expect(strip.locator("img")).to_have_count(1)
    expect(strip).to_be_hidden()
    page.goto(page.url.replace("seed=5", "seed=77"))
    expect(strip).to_be_visible()
    wait_until_drawn(page)
    page.get_by_alt_text("Draw again: a picture by grey, seed 5").hover()
    page.mouse.down()
    page.evaluate("dispatchEvent(new StorageEvent('storage', { key: 'scanline-drawn' }))")
    page.mouse.up()
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 5")


def test_gallery_is_shown_in_all_drawing_views(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    page.click("nav [data-view=complete]")
    wait_until_drawn(page, "complete")
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
    expect(page.locator("#complete .image-grid li")).to_have_count(2)  # with the input
    expect(page.locator("#complete [data-strip=kept] img")).to_be_visible()
    expect(page.locator("#main")).to_be_focused()
    press_enter(page, "[data-strip=drawn] .secondary")
    expect(kept).to_be_focused()


def test_automatic_drawings_are_not_listed(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    page.click("nav [data-view=complete]")
    wait_until_drawn(page, "complete")
    strip = page.locator("[data-strip=drawn] img")
    expect(strip).to_have_count(0)
    page.click("#complete-form button[type=submit]")
    expect(strip).to_have_count(1)


def test_storage_is_read_again_when_the_browser_restores_the_page(visit: Open) -> None:
    """A page in the back/forward cache does not hear what other pages store meanwhile."""
    damage = "localStorage.length || localStorage.setItem('scanline-drawn', '{\"drawn\": 3}');"
    page = visit("#draw?n=1&seed=5", script=damage)
    wait_until_drawn(page)
    drawn = page.locator("[data-strip=drawn] img")
    expect(drawn).to_have_count(1)  # the damaged list was ignored
    page.evaluate(
        """() => {
            localStorage.clear();
            dispatchEvent(new PageTransitionEvent("pageshow", { persisted: true }));
        }"""
    )
    expect(drawn).to_have_count(0)


def test_kept_image_leaves_the_form_as_it_is(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5&label=one")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-keep")
    page.keyboard.press("Escape")
    text = "by grey, {}drawn as a one, seed 5"
    for strip, alt in (
        ("kept", "a picture " + text.format("")),
        ("drawn", "3 pictures " + text.format("the first ")),
    ):
        shown = page.locator(f"[data-strip={strip}] img")
        expect(shown).to_have_attribute("alt", f"Draw again: {alt}")
    page.check("#draw-classes [value='zero']")
    wait_until_drawn(page)
    page.click("[data-strip=kept] a")
    expect(page.locator("#draw .image-grid li")).to_have_count(1)
    expect(page.locator("#draw .drawn-as")).to_have_text("drawn as a one")
    expect(page.locator("#draw-n")).to_have_value("3")
    expect(page.locator("#draw-classes :checked")).to_have_value("zero")
