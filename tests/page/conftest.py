"""Fixtures: a browser, a server with two small fake models, and a function to open the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from scanline.kernels.native.training import library
from scanline.service.state.app_state import AppState
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, build, listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.page.helpers import Open


@pytest.fixture(scope="package")  # not "session": its event loop would conflict with other tests
def browser() -> Iterator[Browser]:
    from tests.page.helpers import ARGUMENTS, CHROMIUM, playwright  # may be missing

    playwright.expect.set_options(timeout=60_000)  # generous, for busy machines
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[AppState, str, FakeDecoder]]:
    library.get_library()  # builds it now, so that no score waits
    grey = FakeDecoder(GREY, 8)
    grey.arithmetic = 1
    app_state, app = build(decoders={"grey": grey, "colour": FakeDecoder(COLOUR, 8)})
    with listening(app, lambda: app_state.ready) as url:
        yield app_state, url, grey


@pytest.fixture
def grey(served: tuple[AppState, str, FakeDecoder]) -> Iterator[FakeDecoder]:
    """The decoder of the first model, which a test may slow down or break."""
    yield served[2]
    served[2].before_step = lambda slots: None


@pytest.fixture
def visit(browser: Browser, served: tuple[AppState, str, FakeDecoder]) -> Iterator[Open]:
    """Return a function that opens the page, with reduced motion unless options say otherwise.

    The test fails if the page logs an error or requests anything from another origin.
    """
    contexts: list[Any] = []
    errors: list[str] = []
    allowed: list[str] = []

    def open_page(fragment: str = "", url: str = served[1], **options: Any) -> Page:
        allowed.extend(options.pop("allowed", []))
        script = options.pop("script", None)
        options = {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 900}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda r: None if is_own(r.url, url) else errors.append(r.url))
        if script:
            page.add_init_script(script)
        page.goto(f"{url}/{fragment}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [e for e in errors if not any(word in e for word in allowed)] == []


def is_own(address: str, base: str) -> bool:
    return address.startswith((base, "blob:", "data:"))
