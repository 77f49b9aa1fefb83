"""What Firefox and Safari do otherwise, imitated here: Chromium is what there is to test with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from tests.page.helpers import (
    PHONE,
    Open,
    box,
    expect,
    finished,
    hash_of,
    measured,
    pixels,
    upload,
)
from tests.service.fixtures import GREY, encode

if TYPE_CHECKING:
    pass

FIELDS = "input:not([type=radio], [type=range], [type=color], [type=file]), select, textarea"
DRAG = """([kind, files]) => {
    const dataTransfer = new DataTransfer();
    if (files) dataTransfer.items.add(new File([], "dragged.png", {type: "image/png"}));
    document.body.dispatchEvent(
        new DragEvent(kind, {dataTransfer, bubbles: true, cancelable: true}));
    return document.body.classList.contains("dropping");
}"""


def test_a_tool_that_the_browser_kept_is_the_one_at_hand(visit: Open) -> None:
    page = visit("#complete?model=colour")
    finished(page, "complete")
    page.check("[name=tool][value=draw]")
    page.evaluate("() => { document.querySelector('[name=colour]').value = '#ff0000'; }")
    page.goto("about:blank")
    page.go_back()
    finished(page, "complete")
    expect(page.locator("[name=tool]:checked")).to_have_value("draw")
    page.locator("#editor").scroll_into_view_if_needed()
    place = box(page, "#editor")
    page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] * 0.9)
    assert [255, 0, 0, 255] in np.reshape(pixels(page, "#editor")[0], (-1, 4)).tolist()


@pytest.mark.parametrize("tool", ["[value=draw]", "#undo", "#complete-brush"])
def test_a_tool_that_is_taken_up_is_so_without_the_focus(visit: Open, tool: str) -> None:
    page = visit("#complete", **PHONE)
    finished(page, "complete")
    way = "() => getComputedStyle(document.getElementById('editor')).touchAction"
    assert "pan-y" in page.evaluate(way)
    kind = "change" if "brush" in tool else "click"
    page.locator(tool).evaluate(
        """(element, kind) => (kind === "click" ? element.click()
            : element.dispatchEvent(new Event(kind, {bubbles: true})))""",
        kind,
    )
    assert page.evaluate(way) == "pinch-zoom"


@pytest.mark.parametrize("offset", [3, 19])
def test_thin_lines_of_a_large_picture_are_not_skipped(visit: Open, offset: int) -> None:
    page = visit("#complete")
    finished(page, "complete")
    large = np.full((40 * GREY.height, 40 * GREY.width), 255, np.uint8)
    for k in range(3):
        large[:, offset + k :: 40] = 0
    upload(page, encode(Image.fromarray(large)))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    shown = np.array(pixels(page, "#editor")[0]).reshape(-1, 4)
    seen = shown[shown[:, 3] == 255, 0]
    assert len(seen) > 0
    assert np.ptp(seen) <= 2
    assert abs(seen.mean() - 255 * 37 / 40) <= 2


def test_pictures_are_sent_as_they_are_where_canvases_are_not_to_be_read(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        script="""for (const name of ["OffscreenCanvas", "HTMLCanvasElement"]) {
            const {prototype} = window[name];
            for (const way of ["convertToBlob", "toBlob"]) {
                if (prototype[way]) prototype[way] = async () => new Blob();
            }
        }""",
    )
    finished(page)
    page.locator("#draw .image-grid button").click()
    page.click("#viewer-inside")
    measured(page)
    page.click("#inside .primary >> text=Continue in 8 ways")
    expect(page.locator("#whatif-results [data-report]")).to_contain_text("a second")


def test_an_address_that_is_refused_is_written_later(visit: Open) -> None:
    page = visit(
        "#inside?seed=5&at=3",
        script="""const replace = history.replaceState.bind(history);
            history.replaceState = (...input) => {
                if (window.full) throw new DOMException("too often", "SecurityError");
                replace(...input);
            };""",
    )
    measured(page)
    page.evaluate("() => { window.full = true; }")
    page.focus("#inside-position")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#inside-position")).to_have_value("6")
    assert "at=3" in hash_of(page)
    page.evaluate("() => { window.full = false; }")
    page.wait_for_function("() => location.hash.includes('at=6')")


def test_a_press_beside_what_is_enlarged_closes_it(visit: Open) -> None:
    page = visit()
    page.add_init_script("delete HTMLDialogElement.prototype.closedBy")
    plain = page.request.get(page.url.split("#")[0]).text()
    plain = plain.replace('closedby="any"', 'closedby="closerequest"')
    page.route("**/", lambda route: route.fulfill(body=plain, content_type="text/html"))
    page.reload()
    finished(page)
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-title")
    place = box(page, "#viewer-speed")
    page.mouse.move(place["x"] + 9, place["y"] + place["height"] / 2)
    page.mouse.down()
    page.mouse.move(5, 400)
    page.mouse.up()
    expect(page.locator("#viewer")).to_be_visible()
    page.mouse.click(5, 400)
    expect(page.locator("#viewer")).to_be_hidden()


def test_a_file_dragged_from_part_to_part_has_not_left_the_page(visit: Open) -> None:
    page = visit()
    finished(page)
    assert page.evaluate(DRAG, ["dragover", True])
    assert page.evaluate(DRAG, ["dragleave", True])
    page.wait_for_function("() => !document.body.classList.contains('dropping')")


@pytest.mark.parametrize("view", ["draw", "complete", "inside"])
def test_no_phone_enlarges_the_page_for_a_field(visit: Open, view: str) -> None:
    page = visit(f"#{view}", **PHONE)
    sizes = page.eval_on_selector_all(
        FIELDS,
        "all => all.map(e => [e.id, parseFloat(getComputedStyle(e).fontSize)])",
    )
    assert sizes
    assert [one for one in sizes if one[1] < 16] == []


def test_nothing_lies_under_the_camera_of_a_phone_on_its_side(visit: Open) -> None:
    page = visit("#draw?n=4&seed=5", **PHONE | {"viewport": {"width": 812, "height": 375}})
    session = page.context.new_cdp_session(page)
    insets = {"left": 50, "right": 50, "bottom": 21, "top": 0}
    session.send("Emulation.setSafeAreaInsetsOverride", {"insets": insets})
    finished(page)
    for what in ("nav a", ".brand", "#draw-form", "#draw .image-grid"):
        assert box(page, what)["x"] >= 50, what
    for what in ("nav a >> nth=-1", ".aside", "#draw-form", "#draw .image-grid"):
        assert box(page, what)["right"] <= 762, what
