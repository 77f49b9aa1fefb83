"""Tests of the editor of the view "Complete": sketches, paper colours, undo and kept drawings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from tests.page.helpers import (
    Open,
    box,
    editor_values,
    example_handler,
    expect,
    open_complete_without_examples,
    open_in_editor,
    pick_model,
    pixels,
    press_enter,
    set_slider,
    touch,
    upload,
    wait_until_drawn,
)
from tests.service.fixtures import GREY, encode

if TYPE_CHECKING:
    from playwright.sync_api import Page


def sketch(page: Page, height: float) -> None:
    """Draw a horizontal stroke at this fraction of the editor's height."""
    page.locator("#editor").scroll_into_view_if_needed()
    rect = box(page, "#editor")
    y = rect["y"] + rect["height"] * height
    page.mouse.move(rect["x"] + rect["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(rect["x"] + rect["width"] * 0.7, y, steps=4)
    page.mouse.up()


def test_sketch_is_completed_from_end_of_last_stroke(visit: Open) -> None:
    """Otherwise the model would see the end of the stroke as known."""
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    restore = page.locator("#tools label", has_text="Restore")
    expect(restore).to_be_visible()
    page.click("#blank")
    expect(restore).to_be_hidden()  # nothing could be restored
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#editor-status")).to_have_text("Draw something first.")
    page.click("#undo")
    expect(restore).to_be_visible()
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    paper = editor_values(page)
    sketch(page, 0.3)
    drawn = np.flatnonzero((editor_values(page) != paper).any(1))
    assert 0 < drawn.max() < GREY.height - 1
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    given = np.array(pixels(page, "#complete .image-grid canvas")[0]).reshape(GREY.height, -1, 4)
    assert given[: drawn.max(), :, 3].all()
    assert not given[drawn.max() :, :, 3].any()


def test_picture_without_erased_pixels_cannot_be_completed(visit: Open) -> None:
    page = open_in_editor(visit)
    page.check("#tools [value=restore]")
    set_slider(page, "#complete-brush", 15)
    touch(page, "#editor", 2, 3, GREY.width, GREY.height)
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#editor-status")).to_contain_text("Nothing is erased")


def test_drawing_can_start_before_examples_are_loaded(visit: Open) -> None:
    page = visit()
    held = open_complete_without_examples(page)
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor_values(page) == 0).all()
    expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
    for route in held:
        example_handler(250)(route)
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert (editor_values(page) == 250).all()
    page.click("#undo")
    assert (editor_values(page) == 250).all(), "there was no picture before"


def open_with_background(visit: Open, paper: int) -> Page:
    """Open the view with examples of this background value."""
    page: Page = visit()
    wait_until_drawn(page)
    page.route("**/v1/samples", example_handler(paper))
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    return page


def assert_blank(page: Page, paper: int, pen: int) -> None:
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor_values(page) == paper).all()
    sketch(page, 0.5)
    assert np.abs(editor_values(page).astype(int) - pen).min() < 20


def test_light_paper_is_inverted(visit: Open) -> None:
    page = open_with_background(visit, 0)
    offer = page.locator("#light-paper")
    white = encode(Image.new("L", (GREY.width, GREY.height), 250))
    upload(page, white)
    expect(offer).to_be_visible()
    page.go_back()
    wait_until_drawn(page, "complete")
    expect(offer).to_be_hidden()
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 10)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(offer).to_be_hidden()
    upload(page, white)
    press_enter(page, "#light-paper-invert")
    expect(offer).to_be_hidden()
    expect(page.locator("#editor")).to_be_focused()
    assert editor_values(page)[0, 0] == 0
    page.click("#undo")
    assert editor_values(page)[0, 0] == 250
    page.click("#invert")
    assert editor_values(page)[0, 0] == 5, "Invert does not change the contrast"
    assert_blank(page, 0, 255)


def test_photographed_and_dark_strokes_become_white(visit: Open) -> None:
    """Plain inversion would leave the paper grey, which the model completes as noise."""
    page = open_with_background(visit, 0)
    shade = np.linspace(195, 210, GREY.pixels).reshape(GREY.height, GREY.width)
    shade[1, 1:4] = (60, 120, 60)
    upload(page, encode(Image.fromarray(shade.astype(np.uint8))))
    page.click("#light-paper-invert")
    shown = editor_values(page)[:3]
    stroke = np.zeros_like(shown, bool)
    stroke[1, 1:4] = True
    assert (shown[~stroke] == 0).all()
    assert (shown[1, [1, 3]] == 255).all()
    assert 0 < shown[1, 2] < 255
    transparent = np.zeros((GREY.height, GREY.width, 2), np.uint8)
    transparent[1, 1:4] = (20, 255)
    upload(page, encode(Image.fromarray(transparent, "LA")))
    page.click("#light-paper-invert")
    seen = np.array(pixels(page, "#editor")[0]).reshape(GREY.height, GREY.width, 4)
    assert (seen[1, 1:4, 0] == 255).all()
    assert not seen[2:, :, 3].any(), "transparent pixels stay unknown"


def test_light_paper_is_not_offered_if_examples_are_light(visit: Open) -> None:
    page = open_with_background(visit, 250)
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 250)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(page.locator("#light-paper")).to_be_hidden()
    assert_blank(page, 250, 0)


def test_slider_drag_is_one_undo_step(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    rows = page.locator("#complete-rows")
    before = rows.input_value()
    rows.evaluate(
        """(range) => {
            for (const value of [1, 2, 4, 5]) {
                range.value = value;
                range.dispatchEvent(new Event("input", {bubbles: true}));
            }
            range.dispatchEvent(new Event("change", {bubbles: true}));
        }"""
    )
    expect(rows).to_have_value("5")
    page.click("#undo")
    expect(rows).to_have_value(before)


def open_with_sketch(visit: Open, **options: Any) -> tuple[Page, list[list[int]]]:
    """Draw a stroke on a blank picture; return the page and the pixels of the editor."""
    page = visit("#complete", **options)
    wait_until_drawn(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    sketch(page, 0.3)
    drawn = pixels(page, "#editor")
    return page, drawn


def test_undo_restores_drawing_after_example_and_model_switch(visit: Open) -> None:
    page, drawn = open_with_sketch(visit)
    page.click("#examples button")
    assert pixels(page, "#editor") != drawn
    page.focus("#editor")
    page.keyboard.press("Control+z")
    assert pixels(page, "#editor") == drawn
    for model in ("colour", "grey"):
        pick_model(page, model)
        wait_until_drawn(page, "complete")
    assert pixels(page, "#editor") != drawn
    page.focus("#editor")
    for _ in range(4):  # the undo stack also holds the pictures loaded meanwhile
        page.keyboard.press("Control+z")
        if pixels(page, "#editor") == drawn:
            return
    raise AssertionError("undo does not restore the drawing")


def test_arrow_keys_paint_a_line_while_space_is_held(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    set_slider(page, "#complete-brush", 1)
    page.focus("#editor")
    paper = editor_values(page)
    page.keyboard.down(" ")
    page.keyboard.down(" ")  # as the keyboard repeats it
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.up(" ")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")  # hides the cursor
    drawn = editor_values(page) != paper
    row, column = GREY.height // 2, GREY.width // 2
    assert np.flatnonzero(drawn.any(1)).tolist() == [row, row + 1, row + 2]
    assert np.flatnonzero(drawn.any(0)).tolist() == [column]
    page.focus("#editor")
    page.keyboard.press("Control+z")  # the whole line
    assert (editor_values(page) == paper).all()


def test_reload_keeps_an_own_drawing(visit: Open) -> None:
    page, drawn = open_with_sketch(visit)
    page.reload()
    expect(page.locator("#editor-status")).to_contain_text("had not completed yet")
    assert pixels(page, "#editor") == drawn
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    assert page.evaluate("sessionStorage.getItem('scanline-sketch')") is None
