"""Completing: examples, uploads, sketches, and the editor's tools."""

from __future__ import annotations

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
    finished,
    open_in_editor,
    pixels,
    slide,
    touch,
    upload,
)
from tests.service.fixtures import GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


def examples_of(value: int) -> Callable[[Route], None]:
    """Answer requests for examples with pictures of one value."""

    def answer(route: Route) -> None:
        image = {"values": [value] * GREY.pixels, "seed": 0, "index": 0}
        route.fulfill(json={"images": [image]})

    return answer


def editor(page: Page) -> NDArray[np.uint8]:
    """Give the brightness of what is on the editor."""
    shown = np.array(pixels(page, "#editor")[0], np.uint8)
    return shown.reshape(GREY.height, GREY.width, 4)[..., 0]


def sketch(page: Page, height: float) -> None:
    """Draw a level stroke at this part of the editor's height."""
    page.locator("#editor").scroll_into_view_if_needed()
    place = box(page, "#editor")
    y = place["y"] + place["height"] * height
    page.mouse.move(place["x"] + place["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(place["x"] + place["width"] * 0.7, y, steps=4)
    page.mouse.up()


def test_an_example_is_completed_in_one_click(visit: Open) -> None:
    page = visit()
    finished(page)
    page.click("nav >> text=Complete")
    finished(page, "complete")
    assert page.locator("#examples canvas").count() == 6
    before = page.url
    page.locator("#examples button").nth(2).click()
    expect(page).not_to_have_url(before)  # it changes as the new drawing begins
    expect(page.locator("#complete .image-grid li")).to_have_count(9)
    finished(page, "complete")
    given, *drawn = pixels(page, "#complete .image-grid canvas")
    half = 4 * GREY.width * GREY.height // 2
    assert all(image[:half] == given[:half] for image in drawn)
    assert not any(given[half:])
    expect(page.locator("#order-note")).to_be_hidden()


def test_the_action_and_its_result_are_seen_without_scrolling(visit: Open) -> None:
    page = visit("#complete", **LAPTOP)
    finished(page, "complete")
    canvas, button = box(page, "#editor"), box(page, "#complete-form button[type=submit]")
    assert 340 <= canvas["width"] <= 380
    assert button["bottom"] <= 800
    tools = [box(page, tool)["y"] for tool in ("#tools", "#undo", "#invert")]
    assert max(tools) - min(tools) < 10, "the tools are one bar"
    first = box(page, "#complete .image-grid li")
    assert first["x"] > canvas["right"]
    assert first["bottom"] <= 800


def test_a_phone_scrolls_to_the_result(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    assert page.evaluate("() => scrollY") == 0, "nothing was asked for yet"
    assert box(page, "#complete-form button[type=submit]")["bottom"] <= box(page, "nav")["y"]
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete .image-grid li").nth(1)).to_be_in_viewport(ratio=1)


def test_an_upload_is_completed(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    picture = random_picture()
    upload(page, encode(picture))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    slide(page, "#complete-rows", 4)
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    grey = np.array(pixels(page, "#complete .image-grid canvas")[1]).reshape(6, 5, 4)[..., 0]
    assert np.array_equal(grey[:4], np.asarray(picture)[:4])
    again = visit(page.url.split("/")[-1])
    finished(again, "complete")
    assert pixels(again, "#complete .image-grid canvas") == pixels(
        page, "#complete .image-grid canvas"
    )


def test_a_sketch_is_completed_from_the_tip_of_its_last_stroke_on(visit: Open) -> None:
    """Were the tip known, the model would be told that the stroke ends there."""
    page = visit("#complete")
    finished(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    paper = editor(page)
    sketch(page, 0.3)
    drawn = np.flatnonzero((editor(page) != paper).any(1))
    assert 0 < drawn.max() < GREY.height - 1
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    given = np.array(pixels(page, "#complete .image-grid canvas")[0]).reshape(GREY.height, -1, 4)
    assert given[: drawn.max(), :, 3].all()
    assert not given[drawn.max() :, :, 3].any()


def test_an_empty_sheet_cannot_be_completed(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    page.click("#blank")
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#editor-status")).to_have_text("Draw something first.")


def test_what_is_not_erased_cannot_be_completed(visit: Open) -> None:
    page = open_in_editor(visit)
    page.check("#tools [value=restore]")
    slide(page, "#complete-brush", 15)
    touch(page, "#editor", 2, 3, GREY.width, GREY.height)
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#editor-status")).to_contain_text("Nothing is erased")


@pytest.mark.parametrize(("paper", "pen"), [(0, 255), (250, 0)])
def test_paper_and_pen_are_those_of_the_model(visit: Open, paper: int, pen: int) -> None:
    page = visit()
    finished(page)
    page.route("**/v1/samples", examples_of(paper))
    page.click("nav >> text=Complete")
    finished(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor(page) == paper).all()
    sketch(page, 0.5)
    assert np.abs(editor(page).astype(int) - pen).min() < 20


def test_drawing_can_begin_before_the_examples_come(visit: Open) -> None:
    page = visit()
    finished(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route))
    with page.expect_request("**/v1/samples"):
        page.click("nav >> text=Complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    assert (editor(page) == 0).all()
    expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
    for route in held:
        examples_of(250)(route)
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert (editor(page) == 250).all()


def completing_on(visit: Open, paper: int) -> Page:
    """Open the view with examples on such paper."""
    page: Page = visit()
    finished(page)
    page.route("**/v1/samples", examples_of(paper))
    page.click("nav >> text=Complete")
    finished(page, "complete")
    return page


def test_light_paper_is_made_dark_and_even(visit: Open) -> None:
    page = completing_on(visit, 0)
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 10)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(page.locator("#light-paper")).to_be_hidden()
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 250)))
    page.press("#light-paper-invert", "Enter")
    expect(page.locator("#light-paper")).to_be_hidden()
    expect(page.locator("#editor")).to_be_focused()
    assert editor(page)[0, 0] == 0
    page.click("#undo")
    assert editor(page)[0, 0] == 250
    page.click("#invert")
    assert editor(page)[0, 0] == 5, "that is all that this does"


def test_a_stroke_on_a_photographed_paper_is_white_on_black(visit: Open) -> None:
    """Inverted alone its paper would be grey, and what a model makes of that is noise."""
    page = completing_on(visit, 0)
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


def test_what_was_completed_stays_when_the_examples_come(visit: Open) -> None:
    page = visit()
    finished(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route))
    with page.expect_request("**/v1/samples"):
        page.click("nav >> text=Complete")
    expect(page.locator("#editor-status")).to_contain_text("drawing examples")
    expect(page.locator("#examples li")).to_have_count(6)
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    drawn, address = pixels(page, "#complete .image-grid canvas"), page.url
    for route in held:
        examples_of(250)(route)
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert pixels(page, "#complete .image-grid canvas") == drawn
    assert page.url == address
    expect(page.locator("#editor-status")).to_be_empty()


def test_another_picture_takes_away_what_was_made_of_the_last(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    upload(page, encode(random_picture()))
    expect(page.locator("#complete .image-grid li")).to_have_count(0)
    expect(page.locator("#complete [data-share]")).to_be_hidden()
    assert "image=" not in page.url


def test_what_went_wrong_is_in_sight_on_a_phone(visit: Open) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    upload(page, b"no picture")
    expect(page.locator("#complete [role=alert]")).to_be_in_viewport()


def test_only_dark_paper_is_said_to_be_dark(visit: Open) -> None:
    page = completing_on(visit, 100)
    upload(page, encode(Image.new("L", (GREY.width, GREY.height), 250)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    expect(page.locator("#light-paper")).to_be_hidden()


def test_a_slide_is_taken_back_as_one(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
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


def sketched(visit: Open) -> tuple[Page, list[list[int]]]:
    """Draw something on a new sheet; give the page, and how the editor looks then."""
    page = visit("#complete")
    finished(page, "complete")
    page.click("#blank")
    expect(page.locator("#editor")).to_be_focused()
    sketch(page, 0.3)
    drawn = pixels(page, "#editor")
    return page, drawn


def test_a_drawing_is_there_again_after_an_example(visit: Open) -> None:
    page, drawn = sketched(visit)
    page.click("#examples button")
    assert pixels(page, "#editor") != drawn
    page.focus("#editor")
    page.keyboard.press("Control+z")
    assert pixels(page, "#editor") == drawn


def test_a_drawing_is_there_again_after_another_model(visit: Open) -> None:
    page, drawn = sketched(visit)
    for model in ("colour", "grey"):
        page.select_option("#model", model)
        finished(page, "complete")
    assert pixels(page, "#editor") != drawn
    page.focus("#editor")
    for _ in range(4):  # what stands there now, and what stood there meanwhile
        page.keyboard.press("Control+z")
        if pixels(page, "#editor") == drawn:
            return
    raise AssertionError("the drawing is not there again")


def test_examples_that_fail_can_be_asked_for_again(visit: Open) -> None:
    page = visit(allowed=["500"])
    finished(page)
    error = {"message": "drawing failed", "type": "x", "param": None, "code": "x"}
    page.route("**/v1/samples", lambda route: route.fulfill(status=500, json={"error": error}))
    page.click("nav >> text=Complete")
    expect(page.locator("#editor-status")).to_contain_text("The examples failed")
    page.unroute("**/v1/samples")
    page.click("#more-examples")
    expect(page.locator("#examples canvas")).to_have_count(6)
    expect(page.locator("#more-examples")).to_be_hidden()


def test_a_picture_with_a_hole_is_completed_and_the_order_told(visit: Open) -> None:
    page = open_in_editor(visit)
    expect(page.locator("#order-note")).to_be_hidden()
    slide(page, "#complete-rows", GREY.height - 1)
    slide(page, "#complete-brush", 1)
    touch(page, "#editor", 2, 2, GREY.width, GREY.height)
    expect(page.locator("#order-note")).to_contain_text("row by row")
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    given, *drawn = pixels(page, "#complete .image-grid canvas")
    known = np.array(given).reshape(-1, 4)[:, 3] > 0
    assert not known.all()
    for image in drawn:  # what is known stays, below the hole too
        assert np.array_equal(
            np.array(image).reshape(-1, 4)[known], np.array(given).reshape(-1, 4)[known]
        )
    page.click("#undo")
    expect(page.locator("#order-note")).to_be_hidden()


def test_a_pixel_with_any_part_in_a_large_pictures_hole_is_drawn(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    alpha = np.full((8 * GREY.height, 8 * GREY.width), 255, np.uint8)
    alpha[15:17, 20] = 0  # the last line of a row, and the first of the next
    alpha[40, 0] = 1  # seen through, but there
    picture = Image.fromarray(np.stack([np.full_like(alpha, 99), alpha], -1), "LA")
    upload(page, encode(picture))
    expect(page.locator("#order-note")).to_contain_text("row by row")
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    known = np.array(pixels(page, "#complete .image-grid canvas")[0]).reshape(-1, 4)[:, 3] > 0
    hole = np.flatnonzero(~known)
    assert list(hole) == [1 * GREY.width + 2, 2 * GREY.width + 2]


def test_a_file_that_is_no_picture_is_told(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    upload(page, b"no picture", "image/png")
    expect(page.locator("#complete [role=alert]")).to_contain_text("cannot read that file")


def test_a_complaint_stays_while_something_is_shown(visit: Open) -> None:
    page = visit("#complete", reduced_motion="no-preference")
    expect(page.locator("#complete .progress")).to_be_visible()
    upload(page, b"no picture", "image/png")
    alert = page.locator("#complete [role=alert]")
    expect(alert).to_contain_text("cannot read that file")
    expect(page.locator("#complete .progress")).to_be_visible()
    finished(page, "complete")
    expect(alert).to_contain_text("cannot read that file")
    page.click("#complete-form button[type=submit]")
    expect(alert).to_have_count(0)
