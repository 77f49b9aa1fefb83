"""Tests of the view "Complete": examples, uploads, sketches and the editor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.page.helpers import (
    LAPTOP,
    PHONE,
    Open,
    box,
    expect,
    open_in_editor,
    pick_model,
    pixels,
    press_enter,
    set_slider,
    touch,
    upload,
    wait_until_drawn,
)
from tests.service.fixtures import GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def example_handler(value: int) -> Callable[[Route], None]:
    """Return a route handler that answers with one picture of a single value."""

    def answer(route: Route) -> None:
        image = {"values": [value] * GREY.pixels, "seed": 0, "index": 0}
        route.fulfill(json={"images": [image]})

    return answer


def editor(page: Page) -> NDArray[np.uint8]:
    """Return the first channel of the picture in the editor."""
    shown = np.array(pixels(page, "#editor")[0], np.uint8)
    return shown.reshape(GREY.height, GREY.width, 4)[..., 0]


def sketch(page: Page, height: float) -> None:
    """Draw a horizontal stroke at this fraction of the editor's height."""
    page.locator("#editor").scroll_into_view_if_needed()
    rect = box(page, "#editor")
    y = rect["y"] + rect["height"] * height
    page.mouse.move(rect["x"] + rect["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(rect["x"] + rect["width"] * 0.7, y, steps=4)
    page.mouse.up()


def test_example_is_completed_in_one_click(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    assert page.locator("#examples canvas").count() == 6
    before = page.url
    page.locator("#examples button").nth(2).click()
    expect(page).not_to_have_url(before)  # the link changes when the new drawing starts
    expect(page.locator("#complete .image-grid li")).to_have_count(9)
    wait_until_drawn(page, "complete")
    given, *drawn = pixels(page, "#complete .image-grid canvas")
    top = 4 * GREY.width * 2  # 2/7 of its rows, rounded
    assert all(image[:top] == given[:top] for image in drawn)
    assert not any(given[top:])
    expect(page.locator("#order-note")).to_be_hidden()


def test_button_and_results_are_visible_without_scrolling(visit: Open) -> None:
    page = visit("#complete", **LAPTOP)
    wait_until_drawn(page, "complete")
    canvas, button = box(page, "#editor"), box(page, "#complete-form button[type=submit]")
    assert 340 <= canvas["width"] <= 380
    assert button["bottom"] <= 800
    tools = [box(page, tool)["y"] for tool in ("#tools", "#undo", "#invert")]
    assert max(tools) - min(tools) < 10, "the tools are in one row"
    first = box(page, "#complete .image-grid li")
    assert first["x"] > canvas["right"]
    assert first["bottom"] <= 800


def test_phone_scrolls_to_results(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    wait_until_drawn(page, "complete")
    assert page.evaluate("() => scrollY") == 0, "the page does not scroll before the first click"
    expect(page.locator("#complete .image-grid li").first).to_be_in_viewport()
    assert box(page, "#complete-form button[type=submit]")["bottom"] <= box(page, "nav")["y"]
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete .image-grid li").nth(1)).to_be_in_viewport(ratio=1)


def test_upload_is_completed(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    picture = random_picture()
    upload(page, encode(picture))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    set_slider(page, "#complete-rows", 4)
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    grey = np.array(pixels(page, "#complete .image-grid canvas")[1]).reshape(6, 5, 4)[..., 0]
    assert np.array_equal(grey[:4], np.asarray(picture)[:4])
    again = visit(page.url.split("/")[-1])
    wait_until_drawn(again, "complete")
    assert pixels(again, "#complete .image-grid canvas") == pixels(
        page, "#complete .image-grid canvas"
    )


def test_sketch_is_completed_from_end_of_last_stroke(visit: Open) -> None:
    """Otherwise the model would see the end of the stroke as known."""
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    paper = editor(page)
    sketch(page, 0.3)
    drawn = np.flatnonzero((editor(page) != paper).any(1))
    assert 0 < drawn.max() < GREY.height - 1
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    given = np.array(pixels(page, "#complete .image-grid canvas")[0]).reshape(GREY.height, -1, 4)
    assert given[: drawn.max(), :, 3].all()
    assert not given[drawn.max() :, :, 3].any()


def test_blank_picture_cannot_be_completed(visit: Open) -> None:
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


def test_picture_without_erased_pixels_cannot_be_completed(visit: Open) -> None:
    page = open_in_editor(visit)
    page.check("#tools [value=restore]")
    set_slider(page, "#complete-brush", 15)
    touch(page, "#editor", 2, 3, GREY.width, GREY.height)
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#editor-status")).to_contain_text("Nothing is erased")


@pytest.mark.parametrize(("paper", "pen"), [(0, 255), (250, 0)])
def test_blank_picture_has_background_of_examples(visit: Open, paper: int, pen: int) -> None:
    page = visit()
    wait_until_drawn(page)
    page.route("**/v1/samples", example_handler(paper))
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor(page) == paper).all()
    sketch(page, 0.5)
    assert np.abs(editor(page).astype(int) - pen).min() < 20


def test_drawing_can_start_before_examples_are_loaded(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route))
    with page.expect_request("**/v1/samples"):
        page.click("nav >> text=Complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor(page) == 0).all()
    expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
    for route in held:
        example_handler(250)(route)
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert (editor(page) == 250).all()


def open_with_background(visit: Open, paper: int) -> Page:
    """Open the view with examples of this background value."""
    page: Page = visit()
    wait_until_drawn(page)
    page.route("**/v1/samples", example_handler(paper))
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    return page


def test_light_paper_is_inverted(visit: Open) -> None:
    page = open_with_background(visit, 0)
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 10)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(page.locator("#light-paper")).to_be_hidden()
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 250)))
    press_enter(page, "#light-paper-invert")
    expect(page.locator("#light-paper")).to_be_hidden()
    expect(page.locator("#editor")).to_be_focused()
    assert editor(page)[0, 0] == 0
    page.click("#undo")
    assert editor(page)[0, 0] == 250
    page.click("#invert")
    assert editor(page)[0, 0] == 5, "Invert does not change the contrast"


def test_photographed_stroke_becomes_white_on_black(visit: Open) -> None:
    """Plain inversion would leave the paper grey, which the model completes as noise."""
    page = open_with_background(visit, 0)
    shade = np.linspace(195, 210, GREY.pixels).reshape(GREY.height, GREY.width)
    shade[1, 1:4] = (60, 120, 60)
    upload(page, encode(Image.fromarray(shade.astype(np.uint8))))
    page.click("#light-paper-invert")
    shown = editor(page)[:3]
    stroke = np.zeros_like(shown, bool)
    stroke[1, 1:4] = True
    assert (shown[~stroke] == 0).all()
    assert (shown[1, [1, 3]] == 255).all()
    assert 0 < shown[1, 2] < 255


def test_loaded_examples_do_not_replace_completion(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route))
    with page.expect_request("**/v1/samples"):
        page.click("nav >> text=Complete")
    expect(page.locator("#editor-status")).to_contain_text("drawing examples")
    expect(page.locator("#examples li")).to_have_count(6)
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    drawn, address = pixels(page, "#complete .image-grid canvas"), page.url
    for route in held:
        example_handler(250)(route)
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert pixels(page, "#complete .image-grid canvas") == drawn
    assert page.url == address
    expect(page.locator("#editor-status")).to_be_empty()


def test_new_picture_clears_completions(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    upload(page, encode(random_picture()))
    expect(page.locator("#complete .image-grid li")).to_have_count(0)
    expect(page.locator("#complete [data-share]")).to_be_hidden()
    assert "image=" not in page.url


def test_error_is_in_viewport_on_phone(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    wait_until_drawn(page, "complete")
    upload(page, b"no picture")
    expect(page.locator("#complete [role=alert]")).to_be_in_viewport()


def test_light_paper_is_not_offered_if_examples_are_light(visit: Open) -> None:
    page = open_with_background(visit, 100)
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 250)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(page.locator("#light-paper")).to_be_hidden()


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


def open_with_sketch(visit: Open) -> tuple[Page, list[list[int]]]:
    """Draw a stroke on a blank picture; return the page and the pixels of the editor."""
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    sketch(page, 0.3)
    drawn = pixels(page, "#editor")
    return page, drawn


def test_undo_restores_drawing_after_example(visit: Open) -> None:
    page, drawn = open_with_sketch(visit)
    page.click("#examples button")
    assert pixels(page, "#editor") != drawn
    page.focus("#editor")
    page.keyboard.press("Control+z")
    assert pixels(page, "#editor") == drawn


def test_undo_restores_drawing_after_model_switch(visit: Open) -> None:
    page, drawn = open_with_sketch(visit)
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


def test_failed_examples_can_be_retried(visit: Open) -> None:
    page = visit(allowed=["500"])
    wait_until_drawn(page)
    error = {"message": "drawing failed", "type": "x", "param": None, "code": "x"}
    page.route("**/v1/samples", lambda route: route.fulfill(status=500, json={"error": error}))
    page.click("nav >> text=Complete")
    expect(page.locator("#editor-status")).to_contain_text("The examples failed")
    page.unroute("**/v1/samples")
    page.click("#more-examples")
    expect(page.locator("#examples canvas")).to_have_count(6)
    expect(page.locator("#more-examples")).to_be_hidden()


def test_picture_with_hole_is_completed_and_order_explained(visit: Open) -> None:
    page = open_in_editor(visit)
    expect(page.locator("#order-note")).to_be_hidden()
    set_slider(page, "#complete-rows", GREY.height - 1)
    set_slider(page, "#complete-brush", 1)
    touch(page, "#editor", 2, 2, GREY.width, GREY.height)
    expect(page.locator("#order-note")).to_contain_text("row by row")
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    given, *drawn = pixels(page, "#complete .image-grid canvas")
    known = np.array(given).reshape(-1, 4)[:, 3] > 0
    assert not known.all()
    for image in drawn:  # known pixels stay, also after the hole
        assert np.array_equal(
            np.array(image).reshape(-1, 4)[known], np.array(given).reshape(-1, 4)[known]
        )
    page.click("#undo")
    expect(page.locator("#order-note")).to_be_hidden()


def test_pixel_overlapping_transparent_area_is_unknown(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    alpha = np.full((8 * GREY.height, 8 * GREY.width), 255, np.uint8)
    alpha[15:17, 20] = 0  # overlaps the last line of one row and the first of the next
    alpha[40, 0] = 1  # not fully transparent
    picture = Image.fromarray(np.stack([np.full_like(alpha, 99), alpha], -1), "LA")
    upload(page, encode(picture))
    expect(page.locator("#order-note")).to_contain_text("row by row")
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    known = np.array(pixels(page, "#complete .image-grid canvas")[0]).reshape(-1, 4)[:, 3] > 0
    hole = np.flatnonzero(~known)
    assert list(hole) == [1 * GREY.width + 2, 2 * GREY.width + 2]


def test_file_that_is_no_picture_is_reported(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    upload(page, b"no picture", "image/png")
    expect(page.locator("#complete [role=alert]")).to_contain_text("text, not a picture")


def test_unreadable_file_is_named(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    alert = page.locator("#complete [role=alert]")
    for data, kind, message in (
        (b"", "image/png", "That file is empty."),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "image/heic", "cannot read HEIC photographs"),
        (b"II*\0\x08\0\0\0", "image/tiff", "cannot read TIFF pictures"),
        (b"\x01\x02\x03", "image/png", "cannot read that file as a picture"),
        (b"<svg nonsense", "image/svg+xml", "cannot draw that SVG"),
    ):
        upload(page, data, kind)
        expect(alert).to_contain_text(message)
        expect(alert).to_contain_text("JPEG")  # one of the formats that work


def test_svg_is_drawn(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 5 6">'
        '<rect width="5" height="6" fill="#404040"/><rect width="5" height="1" fill="#fff"/></svg>'
    )
    upload(page, svg.encode(), "image/svg+xml")
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    shown = editor(page)
    assert (shown[0] >= 250).all()
    assert (abs(shown[2].astype(int) - 64) <= 2).all()


def test_dark_ink_on_transparent_paper_is_inverted(visit: Open) -> None:
    page = open_with_background(visit, 0)
    picture = np.zeros((GREY.height, GREY.width, 2), np.uint8)
    picture[1, 1:4] = (20, 255)
    upload(page, encode(Image.fromarray(picture, "LA")))
    page.click("#light-paper-invert")
    shown = np.array(pixels(page, "#editor")[0]).reshape(GREY.height, GREY.width, 4)
    assert (shown[1, 1:4, 0] == 255).all()
    assert not shown[2:, :, 3].any(), "transparent pixels stay unknown"


def test_settings_complete_again_from_the_same_seed(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("#complete-form summary")
    seed = page.url.split("seed=")[1].split("&")[0]
    with page.expect_request("**/v1/completions"):
        set_slider(page, "#complete-sampling-temperature", 0.5)
    expect(page).to_have_url(re.compile(f"seed={seed}&temperature=0.5"))


def test_reload_keeps_an_own_drawing(visit: Open) -> None:
    page, drawn = open_with_sketch(visit)
    page.wait_for_function(
        "() => JSON.parse(sessionStorage.getItem('scanline-sketch'))?.state.lowestRow"
    )
    page.reload()
    expect(page.locator("#editor-status")).to_contain_text("had not completed yet")
    assert pixels(page, "#editor") == drawn
    page.click("#complete-form button[type=submit]")
    wait_until_drawn(page, "complete")
    assert page.evaluate("sessionStorage.getItem('scanline-sketch')") is None


def test_error_stays_during_animation(visit: Open) -> None:
    page = visit("#complete", reduced_motion="no-preference")
    expect(page.locator("#complete .progress")).to_be_visible()
    upload(page, b"no picture", "image/png")
    alert = page.locator("#complete [role=alert]")
    expect(alert).to_contain_text("text, not a picture")
    expect(page.locator("#complete .progress")).to_be_visible()
    wait_until_drawn(page, "complete")
    expect(alert).to_contain_text("text, not a picture")
    page.click("#complete-form button[type=submit]")
    expect(alert).to_have_count(0)
