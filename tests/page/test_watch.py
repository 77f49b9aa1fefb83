"""Tests of the view "Watch": the picture, the bars, the dice and the sliders."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.page.helpers import (
    PHONE,
    Open,
    box,
    canvas_pngs,
    expect,
    follow_link,
    listen,
    pick_model,
    pixels,
    set_slider,
    url_hash,
    wait_for_text,
    wait_until_drawn,
)
from tests.page.test_reconnect import QUICK
from tests.service.fixtures import COLOUR, GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from scanline.model.config import ModelConfig

MODELS = {"grey": GREY, "colour": COLOUR}
PICTURE, BARS = "[data-dice-picture]", "[data-dice-charts] canvas"


def open_stage(visit: Open, fragment: str = "#watch?seed=5", **options: Any) -> Page:
    """Open the view, which waits before an uncertain pixel because motion is reduced."""
    page: Page = visit(fragment, **options)
    expect(page.locator("[data-dice-roll]")).to_be_enabled()
    expect(page.locator("[data-dice-verdict]")).to_contain_text("Next:")
    return page


def position(page: Page) -> int:
    text = page.locator("[data-dice-count]").first.text_content()
    found = re.match(r"\d+", text or "")
    assert found is not None, text
    return int(found[0])


def painted(page: Page, config: ModelConfig) -> list[list[int]]:
    """Return the colours of all painted pixels."""
    shown = np.array(pixels(page, PICTURE)[0]).reshape(-1, 4)
    colours: list[list[int]] = shown[: position(page), : config.channels].tolist()
    return colours


def choose_white(page: Page) -> None:
    """Choose 255 for the pixel whose bars are shown."""
    rect = box(page, BARS)
    page.mouse.click(rect["right"] - 9, rect["y"] + rect["height"] / 2)


@pytest.mark.parametrize("name", MODELS)
def test_dice_choose_the_pixels_of_the_seed(visit: Open, name: str) -> None:
    config = MODELS[name]
    page = open_stage(visit, f"#watch?model={name}&seed=5")
    base = page.url.split("#")[0]
    body = {"model": name, "seed": 5, "output": "values"}
    sample = httpx.post(f"{base}v1/samples", json=body, timeout=60).json()["images"][0]["values"]
    expected = np.array(sample).reshape(-1, config.channels).tolist()
    start = position(page)
    verdict = "[data-dice-verdict]"
    listen(page, verdict)
    page.click("[data-dice-roll]")
    wait_for_text(page, verdict, r"The dice say .*\d.*\s%")
    expect(page.locator("[data-dice-count]")).to_contain_text(f"{start + 1} of {config.pixels}")
    assert painted(page, config) == expected[: start + 1]
    expect(page.locator(verdict)).to_contain_text("Next:")
    page.click("[data-dice-back]")
    expect(page.locator("[data-dice-count]")).to_contain_text(f"{start} of {config.pixels}")
    page.click("[data-dice-finish]")
    status = page.locator("#watch [data-status-panel]")
    expect(status).to_contain_text(f"{config.pixels} pixels are drawn.")
    assert painted(page, config) == expected
    expect(page.locator(verdict)).to_contain_text("The last pixel is")
    expect(page.locator("[data-dice-roll]")).to_be_disabled()
    page.click("[data-dice-back]")
    expect(status).to_have_text("")


def test_sliders_reshape_the_bars_and_redraw_the_rest(visit: Open) -> None:
    page = open_stage(visit)
    start, before = position(page), painted(page, GREY)
    bars = canvas_pngs(page, BARS)
    page.check("[data-dice-scale] [value=log]")
    assert canvas_pngs(page, BARS) != bars
    page.check("[data-dice-scale] [value=linear]")
    assert canvas_pngs(page, BARS) == bars
    slider = "[data-dice-sampling] [name=temperature]"
    page.locator(slider).evaluate(
        "range => { range.value = 0.4; range.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    assert canvas_pngs(page, BARS) != bars, "the bars follow a drag"
    with page.expect_request("**/v1/completions"):
        set_slider(page, slider, 0.4)
    expect(page.locator("[data-dice-roll]")).to_be_enabled()
    assert (position(page), painted(page, GREY)) == (start, before)
    expect(page.locator("#watch [data-share-open]")).to_be_hidden()  # no seed draws this again


def test_visitor_chooses_a_value(visit: Open) -> None:
    page = open_stage(visit)
    start, bars = position(page), page.locator(BARS)
    status, count = page.locator("#watch [data-status-panel]"), page.locator("[data-dice-count]")
    expect(bars).to_have_role("slider")
    bars.focus()
    for key in [*["PageUp"] * 16, "ArrowLeft"]:
        page.keyboard.press(key)
    assert re.match(r"254: .*%", bars.evaluate("canvas => canvas.ariaValueText"))
    page.keyboard.press("Enter")
    expect(status).to_contain_text("You chose 254, white")
    expect(count).to_contain_text(f"{start + 1} of")
    assert painted(page, GREY)[-1] == [254]
    expect(page.locator("[data-dice-verdict]")).to_contain_text("Next:")
    choose_white(page)
    expect(status).to_contain_text("You chose 255, white")
    expect(count).to_contain_text(f"{start + 2} of")
    assert painted(page, GREY)[-1] == [255]


def test_choice_changes_the_pixel_whose_bars_are_asked_for_last(visit: Open) -> None:
    page = open_stage(visit)
    start = position(page)
    assert start > 1
    held: list[Route] = []
    page.route("**/v1/distribution/pixel", lambda route: held.append(route), times=1)
    with page.expect_request("**/v1/distribution/pixel"):
        page.click("[data-dice-back]")
    with page.expect_response("**/v1/distribution/pixel"):
        page.click("[data-dice-back]")
    expect(page.locator("[data-dice-count]")).to_contain_text(f"{start - 2} of")
    with page.expect_response("**/v1/distribution/pixel"):
        held[0].continue_()
    canvas_pngs(page, BARS)  # waits until the page has handled it
    page.locator(BARS).press("Enter")
    expect(page.locator("#watch [data-status-panel]")).to_contain_text("You chose")
    assert position(page) == start - 1


def test_choice_while_the_picture_plays_is_said_at_once(visit: Open) -> None:
    page = visit("#watch?seed=5", reduced_motion="no-preference")
    status = "#watch [data-status-panel]"
    page.click("[data-dice-play] >> text=Pause")
    expect(page.locator("[data-dice-verdict]")).to_contain_text("Next:")
    page.select_option("[data-dice-speed]", "60")
    listen(page, status)
    page.locator(BARS).evaluate("""(bars) => {
        document.querySelector("[data-dice-play]").click();
        bars.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
    }""")
    wait_for_text(page, status, "pixels are drawn")
    said = page.evaluate("status => window.messages[status].join()", status)
    assert "You chose" in said.partition("pixels are drawn")[0]


def test_screen_reader_value_of_the_bars_belongs_to_the_pixel(visit: Open) -> None:
    page = open_stage(visit)
    bars = page.locator(BARS)
    for _ in range(2):
        text, now = bars.evaluate("canvas => [canvas.ariaValueText, canvas.ariaValueNow]")
        value, chance = text.split(": ")
        assert value == now
        expect(page.locator("[data-dice-verdict]")).to_contain_text(f"({value}, {chance})")
        page.click("[data-dice-roll]")
        expect(page.locator("[data-dice-verdict]")).to_contain_text("The dice say")
        expect(page.locator("[data-dice-verdict]")).to_contain_text("Next:")


def test_a_failed_choice_is_undone_and_said(visit: Open) -> None:
    page = open_stage(visit, allowed=["500"])
    start, before = position(page), painted(page, GREY)
    error = {"message": "the picture could not be drawn", "code": "generation_failed"}
    page.route("**/v1/completions", lambda route: route.fulfill(status=500, json={"error": error}))
    choose_white(page)
    expect(page.locator("#watch [role=alert]")).to_have_text("The picture could not be drawn.")
    assert (position(page), painted(page, GREY)) == (start, before)
    page.click("[data-dice-roll]")
    expect(page.locator("[data-dice-count]")).to_contain_text(f"{start + 1} of")


def test_a_slider_moved_after_the_last_pixel_draws_the_whole_picture_again(visit: Open) -> None:
    page = open_stage(visit)
    status = page.locator("#watch [data-status-panel]")
    choose_white(page)
    expect(status).to_contain_text("You chose 255, white")
    expect(page.locator("#watch [data-share-open]")).to_be_hidden()
    page.click("[data-dice-finish]")
    expect(status).to_contain_text("pixels are drawn.")
    with page.expect_request("**/v1/samples") as request:
        set_slider(page, "[data-dice-sampling] [name=temperature]", 0.4)
    sent = json.loads(request.value.post_data or "")
    assert (sent["seed"], sent["temperature"]) == (5, 0.4)
    expect(page.locator("#watch [data-share-open]")).to_be_visible()


def open_while_held(visit: Open, **options: Any) -> tuple[Page, list[Route]]:
    """Open a link to a picture while the request that draws it is held."""
    page = visit("#draw?n=1&seed=1", **options)
    wait_until_drawn(page)
    held: list[Route] = []
    page.route("**/v1/samples", lambda route: held.append(route), times=1)
    with page.expect_request("**/v1/samples"):
        follow_link(page, "#watch?seed=5&label=one")
    return page, held


def test_slider_moved_before_a_linked_picture_is_drawn_keeps_its_seed(visit: Open) -> None:
    page, _ = open_while_held(visit)
    count, share = page.locator("[data-dice-count]"), page.locator("#watch [data-share-open]")
    expect(page.locator("[data-dice-verdict]")).to_contain_text("draws the whole picture first")
    expect(count).to_have_text(f"0 of {GREY.pixels} pixels")
    expect(share).to_be_hidden()
    with page.expect_request("**/v1/samples") as request:
        set_slider(page, "[data-dice-sampling] [name=temperature]", 0.4)
    sent = json.loads(request.value.post_data or "")
    assert (sent["seed"], sent["label"], sent["temperature"]) == (5, "one", 0.4)
    expect(count).to_contain_text("drawn as a one")
    expect(share).to_be_visible()


def test_linked_picture_that_failed_is_drawn_when_the_view_is_shown_again(visit: Open) -> None:
    page, held = open_while_held(visit, allowed=["503"])
    page.evaluate(QUICK)
    page.route("**/v1/samples", lambda route: route.fulfill(status=503, json={}))
    held[0].fulfill(status=503, json={})
    expect(page.locator("#watch [role=alert]")).to_contain_text("starting or shutting down")
    page.click("nav [data-view=draw]")
    page.unroute("**/v1/samples")
    with page.expect_request("**/v1/samples") as request:
        page.click("nav [data-view=watch]")
    sent = json.loads(request.value.post_data or "")
    assert (sent["seed"], sent["label"]) == (5, "one")
    expect(page.locator("#watch [role=alert]")).to_have_count(0)


def test_changes_are_undone_one_by_one(visit: Open) -> None:
    page = open_stage(visit)
    undo, share = page.locator("[data-dice-undo]"), page.locator("#watch [data-share-open]")
    slider = page.locator("[data-dice-sampling] [name=temperature]")
    expect(undo).to_be_hidden()
    start, whole = position(page), page.url
    choose_white(page)
    expect(page.locator("#watch [data-status-panel]")).to_contain_text("You chose 255, white")
    set_slider(page, "[data-dice-sampling] [name=temperature]", 0.4)
    expect(undo).to_be_enabled()
    expect(share).to_be_hidden()
    undo.click()
    expect(slider).to_have_value("1")
    assert painted(page, GREY)[-1] == [255]
    expect(share).to_be_hidden()
    undo.click()
    expect(page.locator("[data-dice-count]")).to_contain_text(f"{start} of")
    expect(share).to_be_visible()
    expect(undo).to_be_hidden()
    assert page.url == whole
    page.click("[data-dice-finish]")
    expect(page.locator("[data-dice-verdict]")).to_contain_text("The last pixel is")
    sample = {"model": "grey", "seed": 5, "output": "values"}
    reply = httpx.post(page.url.split("#")[0] + "v1/samples", json=sample, timeout=60).json()
    assert [value for (value,) in painted(page, GREY)] == reply["images"][0]["values"]


def test_changes_made_while_the_first_is_drawn_are_undone_together(visit: Open) -> None:
    page = open_stage(visit)
    undo, share = page.locator("[data-dice-undo]"), page.locator("#watch [data-share-open]")
    slider = "[data-dice-sampling] [name=temperature]"
    whole = page.url
    page.route("**/v1/completions", lambda route: None, times=1)  # never answers
    with page.expect_request("**/v1/completions"):
        choose_white(page)
    expect(share).to_be_hidden()  # the link no longer draws what is shown
    with page.expect_response("**/v1/completions"):
        set_slider(page, slider, 0.4)
    undo.click()
    expect(page.locator(slider)).to_have_value("1")
    expect(share).to_be_visible()
    expect(undo).to_be_hidden()
    assert page.url == whole


def test_picture_plays_with_pause(visit: Open) -> None:
    page = visit("#watch?seed=5", reduced_motion="no-preference")
    play, verdict = page.locator("[data-dice-play]"), page.locator("[data-dice-verdict]")
    moved = """(start) =>
        parseInt(document.querySelector('[data-dice-count]').textContent) > start + 1"""
    stopped = 0
    for _ in range(2):
        expect(play).to_have_text("Pause")
        page.wait_for_function(moved, arg=stopped)
        play.click()
        expect(play).to_have_text("Play")
        expect(verdict).to_contain_text("Next:")
        stopped = position(page)
        page.wait_for_timeout(600)
        assert position(page) == stopped
        play.click()
    play.click()
    page.click("[data-dice-finish]")
    expect(verdict).to_contain_text("The dice say")  # the bars follow while the rest is rolled
    expect(verdict).to_contain_text("The last pixel is")


def test_playing_stops_when_the_view_is_left(visit: Open) -> None:
    page = visit("#watch?seed=5", reduced_motion="no-preference")
    expect(page.locator("[data-dice-play]")).to_have_text("Pause")
    page.click("nav [data-view=draw]")
    wait_until_drawn(page)
    page.wait_for_timeout(600)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.wait_for_timeout(600)
    assert [url for url in requested if "distribution" in url] == []


def test_link_repeats_the_picture(visit: Open) -> None:
    page = open_stage(visit, "#watch")
    page.click("[data-dice-finish]")
    expect(page.locator("[data-dice-verdict]")).to_contain_text("The last pixel is")
    again = open_stage(visit, url_hash(page))
    again.click("[data-dice-finish]")
    expect(again.locator("[data-dice-verdict]")).to_contain_text("The last pixel is")
    assert painted(again, GREY) == painted(page, GREY)


def test_picture_and_bars_are_beside_each_other(visit: Open) -> None:
    page = open_stage(visit)
    picture, bars = box(page, PICTURE), box(page, BARS)
    assert bars["x"] > picture["right"]
    assert picture["width"] > 300
    pick_model(page, "colour")
    expect(page.locator(BARS)).to_have_count(3)
    expect(page.locator("[data-dice-roll]")).to_be_enabled()
    assert "model=colour" in url_hash(page)
    page = visit("#watch?seed=5", **PHONE)
    expect(page.locator("[data-dice-roll]")).to_be_enabled()
    for what in (PICTURE, BARS, "[data-dice-play]"):
        expect(page.locator(what).first).to_be_in_viewport(ratio=1)


def test_rare_value_that_the_dice_chose_is_visible(visit: Open) -> None:
    page = visit("#watch")
    marked = page.evaluate(
        """async () => {
            const { Chart } = await import("./static/chart.js");
            const chart = new Chart("Brightness", null, () => {});
            const { canvas } = chart;
            Object.assign(canvas.style, { width: "400px", height: "200px" });
            document.body.append(canvas);
            chart.linear = true;
            const probabilities = Array(256).fill(0);
            [probabilities[0], probabilities[128]] = [0.999, 0.001];
            chart.show(probabilities, 128, null);
            const column = canvas.getContext("2d").getImageData(221, 0, 1, 200).data;
            let rows = 0;
            for (let k = 0; k < column.length; k += 4) rows += column[k + 3] && column[k] > 200
                && column[k + 1] < 150 ? 1 : 0;
            return rows;
        }"""
    )
    assert marked > 12, "a bar of at least 6 pixels, below an arrow"
