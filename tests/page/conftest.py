"""A browser, a server of two small models, and a way to visit it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from scanline.kernels.native.training import library
from scanline.service.state import AppState
from tests.service.fixtures import COLOUR, GREY, FakeDecoder, build, listening

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.page.helpers import Open


@pytest.fixture(scope="package")  # for a session its event loop would be in others' way
def browser() -> Iterator[Browser]:
    from tests.page.helpers import ARGUMENTS, CHROMIUM, playwright  # not where they are missing

    playwright.expect.set_options(timeout=15_000)  # a bound, for machines that are busy
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[AppState, str, FakeDecoder]]:
    library.is_available()  # a score would wait for them to be built
    grey = FakeDecoder(GREY, 8)
    app_state, app = build(decoders={"grey": grey, "colour": FakeDecoder(COLOUR, 8)})
    with listening(app, lambda: app_state.ready) as url:
        yield app_state, url, grey


@pytest.fixture
def grey(served: tuple[AppState, str, FakeDecoder]) -> Iterator[FakeDecoder]:
    """Give the decoder of the first model, to be slowed or broken for one test."""
    yield served[2]
    served[2].before_step = lambda slots: None


@pytest.fixture
def visit(browser: Browser, served: tuple[AppState, str, FakeDecoder]) -> Iterator[Open]:
    """Open the page, without motion unless asked; nothing may be logged or come from elsewhere."""
    contexts: list[Any] = []
    complaints: list[str] = []
    allowed: list[str] = []

    def opened(fragment: str = "", url: str = served[1], **options: Any) -> Page:
        allowed.extend(options.pop("allowed", []))
        script = options.pop("script", None)
        options = {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 900}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if own(r.url, url) else complaints.append(r.url))
        if script:
            page.add_init_script(script)
        page.goto(f"{url}/{fragment}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [c for c in complaints if not any(word in c for word in allowed)] == []


def own(address: str, base: str) -> bool:
    return address.startswith((base, "blob:", "data:"))
