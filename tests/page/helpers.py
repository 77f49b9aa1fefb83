"""Shared by the tests of the page: what is needed to run them, and ways to look at the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.fixtures import encode, random_picture

playwright = pytest.importorskip("playwright.sync_api", reason="needs: pip install '.[e2e]'")
if TYPE_CHECKING:
    from playwright.sync_api import Page

# The shell has no windows to keep, which take as long as the tests.
KINDS = "chromium-headless-shell", "chromium", "chromium-browser"
CHROMIUM = next(filter(None, map(shutil.which, KINDS)), None)
if CHROMIUM is None:
    pytest.skip("needs chromium: apt install chromium", allow_module_level=True)

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
LAPTOP = {"viewport": {"width": 1280, "height": 800}}

Open = Callable[..., Any]
expect = playwright.expect


def finished(page: Page, view: str = "draw") -> None:
    """Wait until a view has drawn what it was asked for."""
    expect(page.locator(f"#{view} .results [data-report]")).to_contain_text("a second")


def open_in_editor(visit: Open, **options: Any) -> Page:
    """Open the page with a picture on the editor, its lower half erased."""
    page: Page = visit("#complete", **options)
    finished(page, "complete")
    upload(page, encode(random_picture()))
    expect(page.locator("#editor-status")).to_contain_text("as the model sees it")
    return page


def measured(page: Page) -> None:
    """Wait until the picture that is looked into has been measured, and its pixel explained.

    Of a finished picture that is its greatest surprise, to which it goes on once it is measured.
    """
    expect(page.locator("#inside-caption")).to_contain_text("bits/dim")
    expect(page.locator("#charts")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#expected-text")).to_contain_text("ost likely")


def pixels(page: Page, selector: str) -> list[list[int]]:
    """Read what every canvas under the selector shows, after the frame that is due."""
    result: list[list[int]] = page.eval_on_selector_all(
        selector,
        "async all => {"
        "  for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);"
        "  return all.map(c => Array.from(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data));"
        "}",
    )
    return result


def looks(page: Page, selector: str) -> list[str]:
    """Give PNGs of what canvases show, to compare: pixels of a large one take seconds."""
    result: list[str] = page.eval_on_selector_all(
        selector,
        "async all => {"
        "  for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);"
        "  return all.map(c => c.toDataURL());"
        "}",
    )
    return result


def box(page: Page, selector: str) -> dict[str, float]:
    """Give where an element lies in the window."""
    found = page.locator(selector).first.bounding_box()
    assert found is not None, f"{selector} is not shown"
    x, y, width, height = (float(found[name]) for name in ("x", "y", "width", "height"))
    return {
        "x": x, "y": y, "width": width, "height": height, "right": x + width, "bottom": y + height,
    }  # fmt: skip


def touch(page: Page, selector: str, column: int, row: int, width: int, height: int) -> None:
    """Click one pixel of a canvas that shows ``width`` × ``height`` of them."""
    page.locator(selector).scroll_into_view_if_needed()
    place = box(page, selector)
    page.mouse.click(
        place["x"] + place["width"] * (column + 0.5) / width,
        place["y"] + place["height"] * (row + 0.5) / height,
    )


def upload(page: Page, data: bytes, kind: str = "image/png") -> None:
    """Choose a file."""
    page.set_input_files("#file", {"name": "picture", "mimeType": kind, "buffer": data})


def slide(page: Page, selector: str, value: float) -> None:
    """Move a range to a value in one go, and let it rest there."""
    page.locator(selector).evaluate(
        """(range, value) => {
            range.value = value;
            for (const kind of ["input", "change"]) {
                range.dispatchEvent(new Event(kind, {bubbles: true}));
            }
        }""",
        value,
    )


def hash_of(page: Page) -> str:
    """Give the part of the address that a link of the page is made of."""
    address: str = page.url
    return "#" + address.partition("#")[2]
