"""On a phone the pictures come first: one row on top, the controls a sheet, the action at hand."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from tests.page.helpers import LAPTOP, PHONE, Open, box, expect, finished, pixels
from tests.service.fixtures import GREY, FakeDecoder, build, listening

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page


def test_the_settings_are_a_sheet(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE)
    finished(page)
    expect(page.locator("#draw-n")).to_be_hidden()
    page.click("#draw-form .buttons .phone-only")
    expect(page.locator("#draw-n")).to_be_in_viewport()
    assert box(page, "#draw-options")["bottom"] >= 843
    page.fill("#draw-n", "2")
    page.keyboard.press("Enter")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .image-grid li")).to_have_count(2)
    finished(page)
    page.click("#draw-form .buttons .phone-only")
    page.fill("#draw-n", "3")
    page.click("#draw-options [type=submit]")
    expect(page.locator("#draw-options")).to_be_hidden()
    expect(page.locator("#draw .image-grid li")).to_have_count(3)
    finished(page)
    page.click("#draw-form .buttons .phone-only")
    page.keyboard.press("Escape")
    expect(page.locator("#draw-options")).to_be_hidden()


def test_the_settings_make_room_for_what_they_draw(visit: Open) -> None:
    page = visit(
        "#draw?n=8&seed=5&label=a+frog", **PHONE | {"viewport": {"width": 320, "height": 740}}
    )
    finished(page)
    expect(page.locator("#draw-classes label", has_text="a frog")).to_be_in_viewport(ratio=1)
    page.click("#draw-form .buttons .phone-only")
    page.click("#draw-form [data-dice]")
    expect(page.locator("#draw-options")).to_be_hidden()
    page.click("#draw-form .buttons .phone-only")
    page.select_option("#draw-by", "temperature")
    expect(page.locator("#draw-options")).to_be_hidden()
    finished(page)
    assert box(page, "#draw .image-grid button")["width"] >= 70
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320


def test_a_wide_screen_has_room_for_the_settings(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **LAPTOP)
    finished(page)
    expect(page.locator("#draw-n")).to_be_in_viewport()
    expect(page.locator("#draw-form .buttons .phone-only")).to_be_hidden()


def test_the_panel_stays_while_the_images_scroll(visit: Open) -> None:
    for size in (PHONE, LAPTOP):
        page = visit("#draw?n=64&seed=5", **size)
        finished(page)
        page.locator("#draw .image-grid li").last.scroll_into_view_if_needed()
        assert page.evaluate("() => scrollY") > 100
        expect(page.locator("#draw-form .buttons [type=submit]")).to_be_in_viewport(ratio=1)


def test_a_picture_with_the_focus_is_not_under_the_panel(visit: Open) -> None:
    page = visit("#draw?n=64&seed=5", **PHONE)
    finished(page)
    page.locator("#draw .image-grid button").last.focus()
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        assert box(page, ":focus")["y"] >= box(page, "#draw-form")["bottom"]
    page.set_viewport_size({"width": 740, "height": 340})  # where it would fill the screen
    page.locator("#draw .image-grid button").last.focus()
    assert box(page, "#draw-form")["bottom"] < 0


def test_few_tiles_are_large(visit: Open) -> None:
    widths = {}
    for n in (1, 4, 12, 64):
        page = visit(f"#draw?n={n}&seed=5", **PHONE)
        finished(page)
        widths[n] = box(page, "#draw .image-grid button")["width"]
    assert widths[1] > widths[4] > widths[12] > widths[64]
    assert widths[1] > 300


def test_a_phone_sees_pictures_without_scrolling(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE)
    finished(page)
    expect(page.locator("#draw .image-grid li").first).to_be_in_viewport(ratio=1)


def drag(page: Page, by: tuple[float, float], fingers: int = 1) -> None:
    """Lay fingers on the editor, side by side, and move them."""
    session: CDPSession = page.context.new_cdp_session(page)
    page.evaluate("() => scrollTo(0, 0)")
    place = box(page, "#editor")
    x, y = place["x"] + place["width"] / 3, place["y"] + place["height"] / 4

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


def test_a_finger_that_scrolls_over_the_easel_erases_nothing(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    before = pixels(page, "#editor")
    drag(page, (0, -150))
    page.wait_for_function("() => scrollY > 50")
    assert pixels(page, "#editor") == before


def test_a_finger_erases_sideways_and_then_every_way(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    looks = [pixels(page, "#editor")]
    for way in ((90, 0), (0, -90)):
        drag(page, way)
        expect(page.locator("#editor")).to_be_focused()
        looks.append(pixels(page, "#editor"))
    assert page.evaluate("() => scrollY") == 0
    drag(page, (0, -150), fingers=2)  # they scroll, whatever is at hand
    page.wait_for_function("() => scrollY > 50")
    assert pixels(page, "#editor") == looks[2]
    for look in (looks[1], looks[0]):
        page.click("#undo")
        assert pixels(page, "#editor") == look
    drag(page, (0, -90))  # Undo is at hand between two strokes
    assert page.evaluate("() => scrollY") == 0
    assert pixels(page, "#editor") != looks[0]


def test_a_sheet_to_draw_on_takes_every_stroke(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    paper = pixels(page, "#editor")
    drag(page, (0, 90))
    assert pixels(page, "#editor") != paper
    assert page.evaluate("() => scrollY") == 0


def test_the_choice_of_tries_can_be_read(visit: Open) -> None:
    page = visit("#complete", **PHONE | {"viewport": {"width": 320, "height": 740}})
    finished(page, "complete")
    assert box(page, "#complete-particles")["width"] >= 100


@pytest.mark.parametrize("view", ["draw", "inside", "play", "learn"])
def test_a_long_word_makes_no_page_wider(visit: Open, view: str) -> None:
    word = "pneumonoultramicroscopicsilicovolcanoconiosis"
    decoder = FakeDecoder(dataclasses.replace(GREY, classes=(word, "x")), 8)
    app_state, app = build(decoders={f"a_model_of_{word}": decoder})
    with listening(app, lambda: app_state.ready) as url:
        asked = {"draw": f"?label={2 * word}", "inside": f"?seed=5&label={word}"}.get(view, "")
        page = visit(f"#{view}{asked}", url=url, **PHONE)
        said = {
            "draw": ("[role=alert]", word),
            "inside": ("#inside-caption", "bits/dim"),
            "play": ("#play-status", "Picture 1 of 5"),
            "learn": ("#learn-facts", word),
        }
        expect(page.locator(f"#{view} {said[view][0]}")).to_contain_text(said[view][1])
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
        page.context.close()
