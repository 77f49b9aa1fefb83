"""Tests of the layout and touch gestures on phones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tests.page.helpers import (
    LAPTOP,
    PHONE,
    Open,
    box,
    expect,
    fill_setting,
    follow_link,
    open_settings,
    pixels,
    wait_until_drawn,
)
from tests.page.test_lookahead import open_with_hole
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, listening

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page


def test_settings_drawer(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE)
    wait_until_drawn(page)
    expect(page.locator("#draw .image-grid li").first).to_be_in_viewport(ratio=1)
    expect(page.locator("#draw-n")).to_be_hidden()
    page.click("#draw-settings")
    expect(page.locator("#draw-n")).to_be_in_viewport()
    assert box(page, "#draw-options")["bottom"] >= 843
    fill_setting(page, "#draw-n", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .image-grid li")).to_have_count(2)
    wait_until_drawn(page)
    page.click("#draw-settings")
    fill_setting(page, "#draw-n", "3")
    page.click("#draw-options [type=submit]")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .image-grid li")).to_have_count(3)
    wait_until_drawn(page)
    page.click("#draw-settings")
    page.keyboard.press("Escape")
    expect(page.locator("#draw-options")).to_be_hidden()
    page.click("#draw-settings")
    for width, height in ((844, 390), (390, 844)):  # the phone is turned
        page.set_viewport_size({"width": width, "height": height})
        sheet = page.locator("#draw-options:popover-open")
        expect(sheet).to_have_count(int(width < height))  # beside the pictures on a wide screen
        expect(page.locator("#draw-n")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#draw-n")).to_be_hidden()


def test_settings_drawer_closes_when_drawing(visit: Open) -> None:
    page = visit(
        "#draw?n=8&seed=5&label=a+frog", **PHONE | {"viewport": {"width": 320, "height": 740}}
    )
    wait_until_drawn(page)
    expect(page.locator("#draw-classes label", has_text="a frog")).to_be_in_viewport(ratio=1)
    page.click("#draw-settings")
    page.click("#draw-form [data-dice]")
    expect(page.locator("#draw-options")).to_be_hidden()
    page.click("#draw-settings")
    open_settings(page)
    page.select_option("#draw-by", "temperature")
    expect(page.locator("#draw-options")).to_be_hidden()
    wait_until_drawn(page)
    assert box(page, "#draw .image-grid button")["width"] >= 70
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320


def test_settings_open_below_the_form_on_laptops(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **LAPTOP)
    wait_until_drawn(page)
    expect(page.locator("#draw-n")).to_be_hidden()
    page.click("#draw-settings")
    expect(page.locator("#draw-n")).to_be_in_viewport()
    expect(page.locator("#draw-settings")).to_have_attribute("aria-expanded", "true")
    page.click("#draw-settings")
    expect(page.locator("#draw-n")).to_be_hidden()


def test_landing_offers_both_starts_without_scrolling(visit: Open) -> None:
    page = visit(**PHONE)
    wait_until_drawn(page)
    page.set_viewport_size({"width": 320, "height": 740})
    fading = """() => Number(getComputedStyle(
        document.querySelector("#draw-classes"), "::after").opacity)"""
    page.wait_for_function(f"() => ({fading})() > 0.9")  # shows that more classes follow
    page.evaluate("() => document.querySelector('#draw-classes').scrollBy(999, 0)")
    page.wait_for_function(f"() => ({fading})() < 0.1")
    assert box(page, "#draw-form")["width"] == box(page, "#draw .starts")["width"]
    page.set_viewport_size(PHONE["viewport"])
    expect(page.locator("#draw .intro p")).to_be_in_viewport(ratio=1)
    starts = page.locator("#draw .starts a")
    assert starts.count() == 2
    for start in starts.all():
        expect(start).to_be_in_viewport(ratio=1)
    expect(page.locator("#draw .image-grid li").first).to_be_in_viewport(ratio=1)
    expect(page.locator("#draw .detail").first).to_be_hidden()
    for word in ("Seed", "Temperature", "Guidance", "Top-p", "bits per value"):
        expect(page.locator("#draw").get_by_text(word).first).to_be_hidden()
    starts.first.click()
    expect(page.locator("#editor")).to_be_focused()
    expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
    expect(page.locator("#editor")).to_be_in_viewport(ratio=1)


def assert_sticky(page: Page) -> None:
    page.locator("#draw .image-grid li").last.scroll_into_view_if_needed()
    assert page.evaluate("() => scrollY") > 100
    expect(page.locator("#draw-form .buttons [type=submit]")).to_be_in_viewport(ratio=1)


def test_panel_is_sticky_on_laptops(visit: Open) -> None:
    page = visit("#draw?n=64&seed=5", **LAPTOP)
    wait_until_drawn(page)
    assert_sticky(page)


def test_tiles_shrink_below_a_sticky_panel(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", **PHONE)
    widths = {}
    for n in (1, 4, 12, 64):
        follow_link(page, f"#draw?n={n}&seed=5")
        expect(page.locator("#draw .image-grid li")).to_have_count(n)
        wait_until_drawn(page)
        widths[n] = box(page, "#draw .image-grid button")["width"]
    assert widths[1] > widths[4] > widths[12] > widths[64]
    assert widths[1] > 300
    assert_sticky(page)
    page.locator("#draw .image-grid button").last.focus()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        assert box(page, ":focus")["y"] >= box(page, "#draw-form")["bottom"]
    page.set_viewport_size(
        {"width": 740, "height": 340}
    )  # where a sticky panel would fill the screen
    page.locator("#draw .image-grid button").last.focus()
    assert box(page, "#draw-form")["bottom"] < 0


def drag(page: Page, by: tuple[float, float], fingers: int = 1) -> None:
    """Drag fingers, side by side, over the editor."""
    session: CDPSession = page.context.new_cdp_session(page)
    page.evaluate("() => scrollTo(0, 0)")
    rect = box(page, "#editor")
    x, y = rect["x"] + rect["width"] / 3, rect["y"] + rect["height"] / 4

    def send(kind: str, count: int, share: float = 0) -> None:
        points = [
            {"x": x + 60 * k + share * by[0], "y": y + share * by[1], "id": k} for k in range(count)
        ]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    for finger in range(fingers):
        send("touchStart", finger + 1)
    for step in range(1, 9):
        send("touchMove", fingers, step / 8)
    send("touchEnd", 0)


def test_finger_erases_in_all_directions_at_once(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    wait_until_drawn(page, "complete")
    looks = [pixels(page, "#editor")]
    for way in ((0, -90), (90, 0)):
        drag(page, way)
        looks.append(pixels(page, "#editor"))
    assert page.evaluate("() => scrollY") == 0
    assert looks[0] != looks[1] != looks[2]
    drag(page, (0, -150), fingers=2)  # two fingers scroll
    page.wait_for_function("() => scrollY > 50")
    assert pixels(page, "#editor") == looks[2]
    for look in (looks[1], looks[0]):
        page.click("#undo")
        assert pixels(page, "#editor") == look
    assert box(page, "#editor")["x"] > 40, "one finger scrolls beside the editor"
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    paper = pixels(page, "#editor")
    drag(page, (0, 90))
    assert pixels(page, "#editor") != paper, "a vertical stroke on a blank picture"
    assert page.evaluate("() => scrollY") == 0


def test_particles_select_is_wide_enough(visit: Open) -> None:
    page = open_with_hole(visit, **PHONE | {"viewport": {"width": 320, "height": 740}})
    assert box(page, "#complete-particles")["width"] >= 100


def test_own_drawing_stays_in_view_when_completed(visit: Open) -> None:
    page = visit("#complete?own=1", **PHONE)
    expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
    expect(page.locator(".editor")).to_have_class("editor guided")
    drag(page, (60, 40))
    expect(page.locator(".editor")).to_have_class("editor")
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    expect(page.locator("#editor")).to_be_in_viewport(ratio=1)
    expect(page.locator("#complete .image-grid li").nth(1)).to_be_in_viewport(ratio=1)


def test_long_words_do_not_widen_the_page(visit: Open) -> None:
    word = "pneumonoultramicroscopicsilicovolcanoconiosis"
    decoder = FakeDecoder(dataclasses.replace(GREY, classes=(word, "x")), 8)
    app_state, app = build(decoders={f"a_model_of_{word}": decoder})
    with listening(app, lambda: app_state.ready) as url:
        page = visit(f"#draw?label={2 * word}", url=url, **PHONE)
        for link, status, text in (
            (f"#draw?label={2 * word}", "#draw [role=alert]", word),
            (f"#inside?seed=5&label={word}", "#inside-caption", "bits per value"),
            ("#play", "#play-status", "Picture 1 of 5"),
            ("#learn", "#learn-facts", word),
        ):
            follow_link(page, link)
            expect(page.locator(status)).to_contain_text(text)
            root = "document.documentElement"
            assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, link
        page.context.close()
