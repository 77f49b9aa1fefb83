"""Tests of the view "Complete": examples, uploads, results and errors."""

from __future__ import annotations

import re

import numpy as np
from PIL import Image

from tests.page.helpers import (
    LAPTOP,
    PHONE,
    Open,
    box,
    editor_values,
    example_handler,
    expect,
    open_complete_without_examples,
    open_in_editor,
    pixels,
    set_slider,
    touch,
    upload,
    wait_until_drawn,
)
from tests.service.fixtures import GREY, encode, random_picture


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
    for hidden in ("#order-note", "#lookahead"):  # nothing is known after a gap
        expect(page.locator(hidden)).to_be_hidden()
    assert "particles" not in page.url


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
    page.evaluate("() => scrollTo(0, 0)")
    upload(page, b"no picture")
    expect(page.locator("#complete [role=alert]")).to_be_in_viewport()


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


def test_loaded_examples_do_not_replace_completion(visit: Open) -> None:
    page = visit()
    held = open_complete_without_examples(page)
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


def test_files_are_read_or_their_fault_is_named(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 5 6">'
        '<rect width="5" height="6" fill="#404040"/><rect width="5" height="1" fill="#fff"/></svg>'
    )
    upload(page, svg.encode(), "image/svg+xml")
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    shown = editor_values(page)
    assert (shown[0] >= 250).all()
    assert (abs(shown[2].astype(int) - 64) <= 2).all()
    expect(page.locator("#complete .image-grid li")).to_have_count(0)
    expect(page.locator("#complete [data-share]")).to_be_hidden()
    assert "image=" not in page.url, "a new picture clears the completions"
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


def test_settings_complete_again_from_the_same_seed(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("#complete-form summary")
    seed = page.url.split("seed=")[1].split("&")[0]
    with page.expect_request("**/v1/completions"):
        set_slider(page, "#complete-sampling-temperature", 0.5)
    expect(page).to_have_url(re.compile(f"seed={seed}&temperature=0.5"))


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
