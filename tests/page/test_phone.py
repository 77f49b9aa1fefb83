"""On a phone the pictures come first: one row on top, the controls a sheet, the action at hand."""

from __future__ import annotations

from tests.page.fixtures import LAPTOP, PHONE, Open, box, expect, finished


def test_the_settings_are_a_sheet(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE)
    finished(page)
    expect(page.locator("#draw-n")).to_be_hidden()
    page.click("#draw-form .buttons .narrow")
    expect(page.locator("#draw-n")).to_be_in_viewport()
    assert box(page, "#draw-options")["bottom"] >= 843
    page.fill("#draw-n", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .sheet li")).to_have_count(2)
    finished(page)
    page.click("#draw-form .buttons .narrow")
    page.fill("#draw-n", "3")
    page.click("#draw-options [type=submit]")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .sheet li")).to_have_count(3)
    finished(page)
    page.click("#draw-form .buttons .narrow")
    page.keyboard.press("Escape")
    expect(page.locator("#draw-options")).to_be_hidden()


def test_the_settings_make_room_for_what_they_draw(visit: Open) -> None:
    page = visit(
        "#draw?n=8&seed=5&label=a+frog", **PHONE | {"viewport": {"width": 320, "height": 740}}
    )
    finished(page)
    expect(page.locator("#draw-classes label", has_text="a frog")).to_be_in_viewport(ratio=1)
    page.click("#draw-form .buttons .narrow")
    page.click("#draw-form [data-dice]")
    expect(page.locator("#draw-options")).to_be_hidden()
    page.click("#draw-form .buttons .narrow")
    page.select_option("#draw-by", "temperature")
    expect(page.locator("#draw-options")).to_be_hidden()
    finished(page)
    assert box(page, "#draw .sheet button")["width"] >= 70
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320


def test_a_wide_screen_has_room_for_the_settings(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **LAPTOP)
    finished(page)
    expect(page.locator("#draw-n")).to_be_in_viewport()
    expect(page.locator("#draw-form .buttons .narrow")).to_be_hidden()


def test_the_panel_stays_while_the_images_scroll(visit: Open) -> None:
    for size in (PHONE, LAPTOP):
        page = visit("#draw?n=64&seed=5", **size)
        finished(page)
        page.locator("#draw .sheet li").last.scroll_into_view_if_needed()
        assert page.evaluate("() => scrollY") > 100
        expect(page.locator("#draw-form .buttons [type=submit]")).to_be_in_viewport(ratio=1)


def test_a_picture_with_the_focus_is_not_under_the_panel(visit: Open) -> None:
    page = visit("#draw?n=64&seed=5", **PHONE)
    finished(page)
    page.locator("#draw .sheet button").last.focus()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        assert box(page, ":focus")["y"] >= box(page, "#draw-form")["bottom"]
    page.set_viewport_size({"width": 740, "height": 340})  # where it would fill the screen
    page.locator("#draw .sheet button").last.focus()
    assert box(page, "#draw-form")["bottom"] < 0


def test_few_tiles_are_large(visit: Open) -> None:
    widths = {}
    for n in (1, 4, 12, 64):
        page = visit(f"#draw?n={n}&seed=5", **PHONE)
        finished(page)
        widths[n] = box(page, "#draw .sheet button")["width"]
    assert widths[1] > widths[4] > widths[12] > widths[64]
    assert widths[1] > 300


def test_a_phone_sees_pictures_without_scrolling(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE)
    finished(page)
    expect(page.locator("#draw .sheet li").first).to_be_in_viewport(ratio=1)
