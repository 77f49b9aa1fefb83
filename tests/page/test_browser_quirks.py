"""Tests of workarounds for Firefox and Safari, whose behaviour is simulated in Chromium."""

from __future__ import annotations

import numpy as np
from PIL import Image

from tests.page.helpers import (
    PHONE,
    Open,
    box,
    expect,
    pixels,
    upload,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fixtures import GREY, encode

DRAG = """([kind, files]) => {
    const dataTransfer = new DataTransfer();
    if (files) dataTransfer.items.add(new File([], "dragged.png", {type: "image/png"}));
    document.body.dispatchEvent(
        new DragEvent(kind, {dataTransfer, bubbles: true, cancelable: true}));
    return document.body.classList.contains("dropping");
}"""


def test_tool_restored_by_browser_is_applied(visit: Open) -> None:
    page = visit("#complete?model=colour")
    wait_until_drawn(page, "complete")
    page.check("[name=tool][value=draw]")
    page.evaluate("() => { document.querySelector('[name=colour]').value = '#ff0000'; }")
    page.goto("about:blank")
    page.go_back()
    wait_until_drawn(page, "complete")
    expect(page.locator("[name=tool]:checked")).to_have_value("draw")
    page.locator("#editor").scroll_into_view_if_needed()
    rect = box(page, "#editor")
    page.mouse.click(rect["x"] + rect["width"] / 2, rect["y"] + rect["height"] * 0.9)
    assert [255, 0, 0, 255] in np.reshape(pixels(page, "#editor")[0], (-1, 4)).tolist()


def test_downscaling_averages_thin_lines(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    for offset in (3, 19):
        large = np.full((40 * GREY.height, 40 * GREY.width), 255, np.uint8)
        for k in range(3):
            large[:, offset + k :: 40] = 0
        page.click("#blank")
        expect(page.locator("#editor-status")).to_contain_text("Draw the upper part")
        upload(page, encode(Image.fromarray(large)))
        expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
        shown = np.array(pixels(page, "#editor")[0]).reshape(-1, 4)
        seen = shown[shown[:, 3] == 255, 0]
        assert len(seen) > 0
        assert np.ptp(seen) <= 2
        assert abs(seen.mean() - 255 * 37 / 40) <= 2


def test_pictures_are_encoded_without_canvas(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        script="""for (const name of ["OffscreenCanvas", "HTMLCanvasElement"]) {
            const {prototype} = window[name];
            for (const way of ["convertToBlob", "toBlob"]) {
                if (prototype[way]) prototype[way] = async () => new Blob();
            }
        }""",
    )
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").click()
    page.click("#viewer-inside")
    wait_until_measured(page)
    page.click("#inside .primary >> text=Continue in 8 ways")
    expect(page.locator("#whatif-results [data-status-panel]")).to_contain_text("a second")


def test_address_is_written_later_if_history_is_rate_limited(visit: Open) -> None:
    page = visit(
        "#inside?seed=5&at=3",
        script="""const replace = history.replaceState.bind(history);
            history.replaceState = (...input) => {
                if (window.full) throw new DOMException("too often", "SecurityError");
                replace(...input);
            };""",
    )
    wait_until_measured(page)
    page.evaluate("() => { window.full = true; }")
    page.focus("#inside-position")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#inside-position")).to_have_value("6")
    assert "at=3" in url_hash(page)
    page.evaluate("() => { window.full = false; }")
    page.wait_for_function("() => location.hash.includes('at=6')")


def test_click_outside_closes_dialog_without_closedby(visit: Open) -> None:
    page = visit()
    page.add_init_script("delete HTMLDialogElement.prototype.closedBy")
    plain = page.request.get(page.url.split("#")[0]).text()
    plain = plain.replace('closedby="any"', 'closedby="closerequest"')
    page.route("**/", lambda route: route.fulfill(body=plain, content_type="text/html"))
    page.reload()
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-title")
    rect = box(page, "#viewer-speed")
    page.mouse.move(rect["x"] + 9, rect["y"] + rect["height"] / 2)
    page.mouse.down()
    page.mouse.move(5, 400)
    page.mouse.up()
    expect(page.locator("#viewer")).to_be_visible()
    page.mouse.click(5, 400)
    expect(page.locator("#viewer")).to_be_hidden()


def test_drop_target_disappears_without_related_target(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    assert page.evaluate(DRAG, ["dragover", True])
    assert page.evaluate(DRAG, ["dragleave", True])
    page.wait_for_function("() => !document.body.classList.contains('dropping')")


def test_content_respects_safe_area(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE | {"viewport": {"width": 812, "height": 375}})
    session = page.context.new_cdp_session(page)
    insets = {"left": 50, "right": 50, "bottom": 21, "top": 0}
    session.send("Emulation.setSafeAreaInsetsOverride", {"insets": insets})
    wait_until_drawn(page)
    for what in ("nav a", ".brand", "#draw-form", "#draw .image-grid"):
        assert box(page, what)["x"] >= 50, what
    for what in ("nav a >> nth=-1", ".aside", "#draw-form", "#draw .image-grid"):
        assert box(page, what)["right"] <= 762, what


def test_shortcuts_of_the_browser_are_left_to_it(visit: Open) -> None:
    """Alt with an arrow key goes back."""
    page = visit("#inside?seed=5&at=9")
    wait_until_measured(page)
    for target in ("#charts canvas", "#editor"):
        taken = page.locator(target).evaluate(
            """(element) => [false, true].map((altKey) => !element.dispatchEvent(
                new KeyboardEvent("keydown", { key: "ArrowLeft", altKey, cancelable: true })))"""
        )
        assert taken == [True, False], target
        if target != "#editor":
            page.click("nav >> text=Complete")
            wait_until_drawn(page, "complete")
