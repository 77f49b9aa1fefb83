"""The page in real Chromium against a real server; skips where either is not installed."""

from __future__ import annotations

import io
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

from scanline.service.server import Scanline
from tests.service_fixtures import (
    COLOUR,
    GREY,
    FakeDecoder,
    build,
    encode,
    listening,
    random_picture,
    until,
)

playwright = pytest.importorskip("playwright.sync_api", reason="needs: pip install '.[e2e]'")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

expect = playwright.expect
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt install chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Scanline, str, FakeDecoder]]:
    grey = FakeDecoder(GREY, 8)
    scanline, app = build(decoders={"grey": grey, "colour": FakeDecoder(COLOUR, 8)})
    with listening(app, lambda: scanline.ready) as url:
        yield scanline, url, grey


@pytest.fixture
def grey(served: tuple[Scanline, str, FakeDecoder]) -> Iterator[FakeDecoder]:
    """Give the decoder of the first model, to be slowed or broken for one test."""
    yield served[2]
    served[2].before_step = lambda slots: None


@pytest.fixture
def visit(browser: Browser, served: tuple[Scanline, str, FakeDecoder]) -> Iterator[Open]:
    """Open the page, without motion unless asked; nothing may be logged or come from elsewhere."""
    contexts: list[Any] = []
    complaints: list[str] = []
    allowed: list[str] = []

    def opened(fragment: str = "", url: str = served[1], **options: Any) -> Page:
        allowed.extend(options.pop("allowed", []))
        options = {"reduced_motion": "reduce", "viewport": {"width": 1280, "height": 900}} | options
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: None if own(r.url, url) else complaints.append(r.url))
        page.goto(f"{url}/{fragment}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [c for c in complaints if not any(word in c for word in allowed)] == []


def own(address: str, base: str) -> bool:
    return address.startswith((base, "blob:", "data:"))


def finished(page: Page, view: str = "draw") -> None:
    expect(page.locator(f"#{view} [data-report]")).to_contain_text("a second")


def pixels(page: Page, selector: str) -> list[list[int]]:
    """Read what every canvas under the selector shows."""
    result: list[list[int]] = page.eval_on_selector_all(
        selector,
        "all => all.map(c => Array.from(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data))",
    )
    return result


def upload(page: Page, data: bytes, kind: str = "image/png", field: str = "#file") -> None:
    page.set_input_files(field, {"name": "picture", "mimeType": kind, "buffer": data})


def test_the_page_draws_by_itself_and_a_link_draws_the_same(visit: Open) -> None:
    page = visit()
    finished(page)
    assert page.locator("#draw .sheet li").count() == 12
    expect(page.locator("#draw .sheet small").first).to_contain_text("bits/dim")
    first = pixels(page, "#draw .sheet canvas")
    assert len({str(image) for image in first}) == 12
    address = page.url
    assert "seed=" in address
    again = visit(address.split("/")[-1])
    finished(again)
    assert pixels(again, "#draw .sheet canvas") == first


def test_a_class_a_number_and_a_seed_can_be_asked_for(visit: Open) -> None:
    page = visit()
    finished(page)
    page.fill("#draw-form [name=n]", "3")
    page.fill("#draw-form [name=seed]", "77")
    page.check("#draw-form [name=label][value='a frog']")
    expect(page.locator("#draw .sheet small")).to_have_count(3)
    expect(page.locator("#draw .sheet small").last).to_contain_text("seed 79")
    assert "label=a+frog" in page.url


def test_pixels_appear_one_after_another(visit: Open) -> None:
    page = visit("#draw?n=2&seed=1", reduced_motion="no-preference")
    caption = page.locator("#draw .sheet small").first
    expect(caption).to_have_text("drawing")
    expect(page.locator("#draw .bar")).to_be_visible()
    page.click("text=Show all")
    expect(caption).to_contain_text("seed 1")
    finished(page)


def test_cancel_keeps_what_is_drawn(visit: Open, grey: FakeDecoder) -> None:
    grey.before_step = lambda slots: time.sleep(0.3) if grey.steps else None
    page = visit()
    page.click("#draw [data-cancel]")
    expect(page.locator("#draw [data-report]")).to_contain_text("Cancelled")
    expect(page.locator("#draw [data-cancel]")).to_be_hidden()


def test_an_example_is_completed_in_one_click(visit: Open) -> None:
    page = visit()
    finished(page)
    page.click("nav >> text=Complete")
    finished(page, "complete")
    assert page.locator("#examples canvas").count() == 6
    before = page.url
    page.locator("#examples button").nth(2).click()
    expect(page).not_to_have_url(before)  # it changes as the new drawing begins
    expect(page.locator("#complete .sheet li")).to_have_count(9)
    finished(page, "complete")
    given, *drawn = pixels(page, "#complete .sheet canvas")
    half = 4 * GREY.width * GREY.height // 2
    assert all(image[:half] == given[:half] for image in drawn)
    assert not any(given[half:])
    expect(page.locator("#order-note")).to_be_hidden()


def test_an_upload_is_completed(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    picture = random_picture()
    upload(page, encode(picture))
    expect(page.locator("#complete [data-report]")).to_contain_text("on the easel")
    page.fill("#complete-form [name=rows]", "4")
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    grey = np.array(pixels(page, "#complete .sheet canvas")[1]).reshape(6, 5, 4)[..., 0]
    assert np.array_equal(grey[:4], np.asarray(picture)[:4])
    again = visit(page.url.split("/")[-1])
    finished(again, "complete")
    assert pixels(again, "#complete .sheet canvas") == pixels(page, "#complete .sheet canvas")


def test_a_drawing_with_a_hole_is_completed_and_the_order_told(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    page.click("#blank")
    easel = page.locator("#easel")
    easel.scroll_into_view_if_needed()
    box = easel.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.3, steps=4)
    page.mouse.up()
    assert max(pixels(page, "#easel")[0][0::4]) > 200
    page.click("#complete-form button[type=submit]")
    expect(page.locator("#complete [role=alert]")).to_contain_text("Nothing is erased")
    page.check("#tools [value=erase]")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#order-note")).to_contain_text("row by row")
    page.click("#complete-form button[type=submit]")
    finished(page, "complete")
    given, *drawn = pixels(page, "#complete .sheet canvas")
    known = np.array(given).reshape(-1, 4)[:, 3] > 0
    assert not known.all()
    for image in drawn:  # what is known stays, below the hole too
        assert np.array_equal(
            np.array(image).reshape(-1, 4)[known], np.array(given).reshape(-1, 4)[known]
        )
    page.click("#undo")
    expect(page.locator("#order-note")).to_be_hidden()


def test_a_file_that_is_no_picture_is_told(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    upload(page, b"no picture", "image/png")
    expect(page.locator("#complete [role=alert]")).to_contain_text("no picture")


def test_a_failure_of_the_server_is_told(visit: Open, grey: FakeDecoder) -> None:
    page = visit()
    finished(page)

    def fail(slots: list[int]) -> None:
        raise RuntimeError("broken")

    grey.before_step = fail
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [role=alert]")).to_contain_text("rawing failed")


def test_a_lost_connection_is_resumed(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    whole = pixels(page, "#draw .sheet canvas")
    resumed: list[str | None] = []

    def cut(route: Route) -> None:
        reply = route.fetch()
        body = reply.body()
        route.fulfill(response=reply, body=body[: body.index(b"event: image")])

    def refuse_once(route: Route) -> None:
        resumed.append(route.request.headers.get("last-event-id"))
        if len(resumed) == 1:
            route.abort()
        else:
            route.continue_()

    page.route("**/v1/samples", cut)
    page.route("**/events", refuse_once)
    page.fill("#draw-form [name=seed]", "5")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("Reconnecting")
    finished(page)
    assert pixels(page, "#draw .sheet canvas") == whole
    assert len(resumed) == 2
    assert all(resumed)


def test_a_drawing_that_the_server_let_go_is_drawn_again(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", allowed=["404"])
    finished(page)
    whole = pixels(page, "#draw .sheet canvas")
    cuts: list[int] = []

    def cut_once(route: Route) -> None:
        cuts.append(1)
        if len(cuts) > 1:
            route.continue_()
            return
        reply = route.fetch()
        body = reply.body().replace(b"gen_", b"lost_")
        route.fulfill(response=reply, body=body[: body.index(b"event: pixels")])

    page.route("**/v1/samples", cut_once)
    page.click("#draw-form button[type=submit]")
    finished(page)
    assert pixels(page, "#draw .sheet canvas") == whole
    assert len(cuts) == 2


def test_a_full_server_is_asked_again(visit: Open) -> None:
    page = visit(allowed=["429"])
    finished(page)
    asked: list[int] = []

    def refuse_once(route: Route) -> None:
        asked.append(1)
        if len(asked) > 1:
            route.continue_()
            return
        error = {"message": "the queue is full", "type": "x", "param": None, "code": "queue_full"}
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": error})

    page.route("**/v1/samples", refuse_once)
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("full. Trying again")
    finished(page)
    assert len(asked) == 2


def test_the_queue_is_told(
    visit: Open, grey: FakeDecoder, served: tuple[Scanline, str, FakeDecoder]
) -> None:
    page = visit()
    finished(page)
    hold = threading.Event()
    grey.before_step = lambda slots: (hold.wait(), None)[1]
    other = threading.Thread(
        target=httpx.post, args=(f"{served[1]}/v1/samples",), kwargs={"json": {"n": 10}}
    )
    other.start()
    until(lambda: served[0].models["grey"].engine.queue.waiting == 2)
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw [data-report]")).to_contain_text("2 images are ahead")
    hold.set()
    finished(page)
    other.join()


def test_a_key_is_asked_for_once(visit: Open) -> None:
    scanline, app = build({"api_key": "open sesame"}, {"grey": FakeDecoder(GREY, 4)})
    with listening(app, lambda: scanline.ready) as url:
        page = visit(url=url, allowed=["401"])
        page.fill("#key", "open sesame")
        page.keyboard.press("Enter")
        finished(page)
        page.reload()
        finished(page)
        page.context.close()


def test_an_image_is_enlarged_replayed_and_saved(visit: Open, tmp_path: Path) -> None:
    page = visit("#draw?n=2&seed=8")
    finished(page)
    shown = pixels(page, "#draw .sheet canvas")[0]
    page.locator("#draw .sheet button").first.click()
    expect(page.locator("#viewer-facts")).to_contain_text("Seed 8")
    assert pixels(page, "#viewer-canvas")[0] == shown
    page.click("#viewer-replay")
    with page.expect_download() as png:
        page.click("#viewer-png")
    with Image.open(png.value.path()) as saved:
        assert saved.size == (GREY.width, GREY.height)
        assert np.asarray(saved.convert("RGBA")).ravel().tolist() == shown
    with page.expect_download() as drawing:
        page.click("#viewer-apng")
    with Image.open(io.BytesIO(Path(drawing.value.path()).read_bytes())) as animated:
        frames = getattr(animated, "n_frames", 1)
        assert frames == GREY.pixels + 1
        animated.seek(0)
        assert not np.asarray(animated.convert("RGBA"))[..., 3].any()
        animated.seek(frames - 1)
        last = np.asarray(animated.convert("RGBA"))[:: 280 // 5, :: 280 // 5]
        assert last.ravel().tolist() == shown
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()


def test_a_finished_image_can_be_looked_into(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    finished(page)
    page.locator("#draw .sheet button").first.click()
    page.click("#viewer-inside")
    expect(page.locator("#inside-caption")).to_contain_text("bits/dim")
    expect(page.locator("#expected-text")).to_contain_text("Most likely")
    before = page.text_content("#expected-text")
    page.fill("#inside-form [name=position]", "7")
    expect(page.locator("#inside-form [name=place]")).to_have_text("row 2, column 3")
    expect(page.locator("#expected-text")).not_to_have_text(before or "")
    assert len({tuple(p) for p in np.array(pixels(page, "#inside-heat")[0]).reshape(-1, 4)}) > 3


def test_looking_inside_draws_by_itself_in_colour(visit: Open) -> None:
    page = visit("#inside")
    page.select_option("#model", "colour")
    expect(page.locator("#charts canvas")).to_have_count(3)
    page.select_option("#inside-form [name=speed]", "400")
    expect(page.locator("#inside-caption")).to_contain_text("bits/dim")
    expect(page.locator("#expected-text")).to_contain_text(
        re.compile("Red: most likely.*Blue: most likely")
    )


def test_a_colour_model_draws_and_completes(visit: Open) -> None:
    page = visit("#draw?model=colour&n=3&seed=2")
    finished(page)
    assert not page.locator("#draw-classes").is_visible()
    page.click("nav >> text=Complete")
    finished(page, "complete")
    assert page.locator("#complete-form [name=colour]").is_visible()


def test_another_model_draws_at_once(visit: Open) -> None:
    page = visit()
    finished(page)
    page.select_option("#model", "colour")
    finished(page)
    sizes = page.eval_on_selector_all(
        "#draw .sheet canvas", "all => all.map(c => [c.width, c.height])"
    )
    assert sizes == [[COLOUR.width, COLOUR.height]] * 12
    page.click("nav >> text=Complete")
    finished(page, "complete")
    page.select_option("#model", "grey")
    finished(page, "complete")
    page.click("nav >> text=Draw")
    finished(page)
    assert len(pixels(page, "#draw .sheet canvas")[0]) == 4 * GREY.pixels


def test_everything_can_be_done_with_the_keyboard(visit: Open) -> None:
    page = visit()
    finished(page)

    def tab_to(selector: str) -> None:
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("s => document.activeElement.matches(s)", selector):
                return
        raise AssertionError(f"Tab never reaches {selector}")

    tab_to("#draw-form button[type=submit]")
    page.keyboard.press("Enter")
    finished(page)
    tab_to("#draw .sheet button")
    page.keyboard.press("Enter")
    expect(page.locator("#viewer")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-title")).to_have_text("Image 2")
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.closest('.sheet') !== null")
    page.focus("nav a[href='#complete']")
    page.keyboard.press("Enter")
    finished(page, "complete")
    tab_to("#easel")
    known = sum(pixels(page, "#easel")[0][3::4])
    for key in ("ArrowUp", "ArrowUp", "Space"):
        page.keyboard.press(key)
    page.keyboard.press("Tab")
    assert sum(pixels(page, "#easel")[0][3::4]) < known


@pytest.mark.parametrize("view", ["draw", "complete", "inside"])
def test_a_phone_is_wide_enough(visit: Open, view: str) -> None:
    page = visit(f"#{view}", viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page.locator(f"#{view}").wait_for()
    if view != "inside":
        finished(page, view)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit: Open, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = visit(color_scheme=scheme)

    def check(what: str) -> None:
        found = axe.run(page).response["violations"]
        serious = [f for f in found if f["impact"] in ("serious", "critical")]
        told = [(f["id"], [n["html"] for n in f["nodes"]]) for f in serious]
        assert not told, f"{what}: {told}"

    finished(page)
    check("draw")
    page.locator("#draw .sheet button").first.click()
    check("viewer")
    page.keyboard.press("Escape")
    page.click("nav >> text=Complete")
    finished(page, "complete")
    check("complete")
    page.click("nav >> text=Look inside")
    expect(page.locator("#inside-caption")).to_contain_text("bits/dim")
    check("inside")


def test_the_page_may_load_nothing_from_elsewhere(visit: Open) -> None:
    page = visit()
    reply = page.request.get(page.url.split("#")[0])
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
