"""Browser setup and helper functions of the page tests.

Take no `full_page` screenshots: they resize the viewport, which changes the page's layout. Pass
`wait_for_function` a function, not an expression, because the page's policy forbids `eval`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.fixtures import GREY, encode, random_picture

playwright = pytest.importorskip("playwright.sync_api", reason="needs: pip install '.[e2e]'")
if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

# Prefer the headless shell: without windows it starts in half the time.
KINDS = "chromium-headless-shell", "chromium", "chromium-browser"
CHROMIUM = next(filter(None, map(shutil.which, KINDS)), None)
if CHROMIUM is None:
    pytest.skip("needs chromium: apt install chromium-headless-shell", allow_module_level=True)

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
LAPTOP = {"viewport": {"width": 1280, "height": 800}}

Open = Callable[..., Any]
expect = playwright.expect


def wait_until_drawn(page: Page, view: str = "draw") -> None:
    """Wait until a view has drawn all its images."""
    expect(page.locator(f"#{view} .results [data-status-panel]")).to_contain_text("a second")


def open_in_editor(visit: Open, **options: Any) -> Page:
    """Open the editor with a picture whose lower half is erased."""
    page: Page = visit("#complete", **options)
    wait_until_drawn(page, "complete")
    upload(page, encode(random_picture()))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    return page


def example_handler(value: int) -> Callable[[Route], None]:
    """Return a route handler that answers with one picture of a single value."""

    def answer(route: Route) -> None:
        image = {"values": [value] * GREY.pixels, "seed": 0, "index": 0}
        route.fulfill(json={"images": [image]})

    return answer


def editor_values(page: Page) -> NDArray[np.uint8]:
    """Return the first channel of the picture in the editor."""
    shown = np.array(pixels(page, "#editor")[0], np.uint8)
    return shown.reshape(GREY.height, GREY.width, 4)[..., 0]


def wait_until_measured(page: Page) -> None:
    """Wait until the view "Look inside" shows the bits and the prediction of the current pixel.

    For a finished picture, this is the most surprising pixel.
    """
    expect(page.locator("#inside-caption")).to_contain_text("bits per value")
    expect(page.locator("#charts")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#expected-text")).to_contain_text("ost likely")


def pixels(page: Page, selector: str) -> list[list[int]]:
    """Return the RGBA values of each matching canvas, after the pending animation frame."""
    result: list[list[int]] = page.eval_on_selector_all(
        selector,
        "async all => {"
        "  for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);"
        "  return all.map(c => Array.from(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data));"
        "}",
    )
    return result


def canvas_pngs(page: Page, selector: str) -> list[str]:
    """Return each matching canvas as a PNG data URL, which is faster than reading its pixels."""
    result: list[str] = page.eval_on_selector_all(
        selector,
        "async all => {"
        "  for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);"
        "  return all.map(c => c.toDataURL());"
        "}",
    )
    return result


def box(page: Page, selector: str) -> dict[str, float]:
    """Return the position and size of an element in the viewport."""
    found = page.locator(selector).first.bounding_box()
    assert found is not None, f"{selector} is not shown"
    x, y, width, height = (float(found[name]) for name in ("x", "y", "width", "height"))
    return {
        "x": x, "y": y, "width": width, "height": height, "right": x + width, "bottom": y + height,
    }  # fmt: skip


def touch(page: Page, selector: str, column: int, row: int, width: int, height: int) -> None:
    """Click one pixel of a canvas of ``width`` × ``height`` picture pixels."""
    page.locator(selector).scroll_into_view_if_needed()
    rect = box(page, selector)
    page.mouse.click(
        rect["x"] + rect["width"] * (column + 0.5) / width,
        rect["y"] + rect["height"] * (row + 0.5) / height,
    )


def upload(page: Page, data: bytes, kind: str = "image/png") -> None:
    """Choose a file in the view "Complete"."""
    page.set_input_files("#file", {"name": "picture", "mimeType": kind, "buffer": data})


def press_enter(page: Page, selector: str) -> None:
    """Press Enter on a control once it can be used; Playwright's `press` does not wait for that."""
    control = page.locator(selector)
    control.click(trial=True)
    control.press("Enter")


def listen(page: Page, *lines: str) -> None:
    """Collect every text of these elements in `window.messages`."""
    page.evaluate(
        """(lines) => {
            window.messages = Object.fromEntries(lines.map((line) => [line, []]));
            for (const line of lines) {
                const element = document.querySelector(line);
                new MutationObserver(() => window.messages[line].push(element.textContent))
                    .observe(element, { childList: true, subtree: true });
            }
        }""",
        lines,
    )


def wait_for_text(page: Page, line: str, pattern: str) -> None:
    """Wait until an element has had a text since `listen`, however briefly."""
    page.wait_for_function(
        """([line, pattern]) =>
            window.messages[line].some((text) => RegExp(pattern, "s").test(text))""",
        arg=[line, pattern],
    )


def drawn_as(label: str) -> str:
    """Return the page's words for the class of a picture, for the classes of the fake models."""
    return f"drawn as {label}" if label.startswith("a ") else f"drawn as a {label}"


def open_settings(page: Page) -> None:
    """Open the settings of the view "Draw", unless they are open."""
    if not page.locator("#draw-options").is_visible():
        page.click("#draw-settings")


def open_complete_without_examples(page: Page) -> list[Route]:
    """Open the view "Complete" while its examples are held; return the held requests."""
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route))
    with page.expect_request("**/v1/samples"):
        page.click("nav >> text=Complete")
    return held


def set_value(page: Page, selector: str, value: str) -> None:
    """Set a field's value without an event, after which the page would soon draw by itself."""
    page.locator(selector).evaluate("(field, value) => { field.value = value; }", value)


def fill_setting(page: Page, selector: str, value: str) -> None:
    """Fill a field of the settings of the view "Draw"."""
    open_settings(page)
    page.fill(selector, value)


def pick_model(page: Page, model: str) -> None:
    """Switch to a model with its picture button."""
    page.check(f"#model-field [value={model}]")


def share(page: Page, area: str, what: str) -> None:
    """Open the menu "Share" of an area of the page, and press one of its buttons."""
    page.click(f"{area} [data-share-open]")
    page.click(f"{area} [data-copy={what}]")


def set_slider(page: Page, selector: str, value: float) -> None:
    """Set a slider to a value and release it."""
    page.locator(selector).evaluate(
        """(range, value) => {
            range.value = value;
            for (const kind of ["input", "change"]) {
                range.dispatchEvent(new Event(kind, {bubbles: true}));
            }
        }""",
        value,
    )


def url_hash(page: Page) -> str:
    """Return the hash of the page's address."""
    address: str = page.url
    return "#" + address.partition("#")[2]


def follow_link(page: Page, fragment: str) -> None:
    """Open a link to another view or picture on the open page."""
    page.evaluate("hash => { location.hash = hash; }", fragment)


def change_models(page: Page, change: Callable[[dict[str, Any]], object]) -> None:
    """Load the page again with another reply of ``/v1/models``."""

    def answer(route: Route) -> None:
        reply = route.fetch().json()
        change(reply)
        route.fulfill(json=reply)

    page.route("**/v1/models", answer)
    page.reload()
