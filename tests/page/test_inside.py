"""Tests of the view "Look inside": pixels, predictions and continuations."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import torch

from scanline.model.heads import Head
from scanline.service.state.app_state import AppState
from tests.conftest import tiny_config
from tests.page.helpers import (
    PHONE,
    Open,
    box,
    canvas_pngs,
    expect,
    pick_model,
    pixels,
    set_slider,
    touch,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request, Route

Server = tuple[AppState, str, FakeDecoder]
VERDICT = re.compile(
    r"^(Expected .+, got .+|.+, as expected|Almost as expected, .+): \d+\.\d bits\.$"
)


def look_at(page: Page, picture: bytes) -> None:
    """Open a picture of the model's size and wait until it is measured."""
    page.locator("#inside-position").wait_for()
    page.set_input_files(
        "#inside-file", {"name": "picture", "mimeType": "image/png", "buffer": picture}
    )
    expect(page.locator("#inside-caption")).to_contain_text(
        re.compile("Your picture.*bits per value")
    )
    wait_until_measured(page)


def test_finished_image_opens_in_inside_view(visit: Open) -> None:
    page = visit("#draw?n=1&seed=8")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-inside")
    wait_until_measured(page)
    before = page.text_content("#expected-text")
    set_slider(page, "#inside-position", 7)
    expect(page.locator("#inside-form .value")).to_have_text("row 2, column 3")
    expect(page.locator("#expected-text")).not_to_have_text(before or "")
    assert len({tuple(p) for p in np.array(pixels(page, "#inside-heatmap")[0]).reshape(-1, 4)}) > 3


def test_pixel_is_chosen_by_click_and_keys(visit: Open) -> None:
    page = visit("#inside")
    picture = random_picture()
    look_at(page, encode(picture))
    slider = page.locator("#inside-position")
    for canvas, column, row in (("#inside-picture", 3, 2), ("#inside-heatmap", 1, 4)):
        touch(page, canvas, column, row, GREY.width, GREY.height)
        expect(slider).to_have_js_property("ariaValueText", f"row {row + 1}, column {column + 1}")
        actual = np.asarray(picture)[row, column]
        expect(page.locator("#expected-text")).to_contain_text(f"it is {actual} (")
        expect(page.locator("#verdict")).to_have_text(VERDICT)
        left = np.asarray(picture)[row, column - 1]
        expect(page.locator("#neighbours")).to_contain_text(f"left {left},")
        seen = np.array(pixels(page, "#inside-picture")[0]).reshape(-1, 4)[:, 3]
        at = row * GREY.width + column
        assert (seen[: at + 1] == 255).all()
        assert (seen[at + 1 :] < 255).all(), "pixels after the current one are faint"
    touch(page, "#inside-picture", 2, 2, GREY.width, GREY.height)
    slider.focus()
    for key, row in (("ArrowRight", 3), ("PageDown", 4), ("PageUp", 3)):
        page.keyboard.press(key)
        expect(slider).to_have_js_property("ariaValueText", f"row {row}, column 4")
    set_slider(page, "#inside-position", GREY.pixels - 1)
    page.click("#whatif-form button[type=submit]")
    expect(page.locator("#whatif-results [role=alert]")).to_have_text(
        "Nothing comes after this pixel. Choose one before it."
    )


def test_next_surprise_follows_pixel_bits(visit: Open, served: Server) -> None:
    page = visit("#inside")
    picture = encode(random_picture())
    look_at(page, picture)
    reply = httpx.post(
        f"{served[1]}/v1/score", files={"image": picture}, data={"per_pixel": "true"}, timeout=60
    )
    costliest = np.argsort(reply.json()["data"][0]["pixel_bits"])[::-1]
    set_slider(page, "#inside-position", int(costliest[-1]))
    for p in costliest[:3]:
        page.click("#inside-surprise")
        expect(page.locator("#inside-position")).to_have_value(str(p))
    status = page.locator("#inside .actions [data-status-panel]")
    expect(status).to_have_text(f"Surprise 3 of {min(12, GREY.pixels)}.")
    set_slider(page, "#inside-position", int(costliest[-1]))
    expect(status).to_have_text("")


def test_charts_follow_scale_and_colour_scheme(visit: Open) -> None:
    page = visit("#inside", color_scheme="light")
    look_at(page, encode(random_picture()))
    expect(page.locator("#verdict")).to_have_text(VERDICT)
    logarithmic = canvas_pngs(page, "#charts canvas")
    page.check("#chart-scale [value=linear]")
    assert canvas_pngs(page, "#charts canvas") != logarithmic
    page.check("#chart-scale [value=log]")
    assert canvas_pngs(page, "#charts canvas") == logarithmic
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(100)
        assert (canvas_pngs(page, "#charts canvas") == logarithmic) is (scheme == "light")


def test_continuation_from_chosen_value(visit: Open) -> None:
    page = visit("#inside")
    picture = random_picture()
    look_at(page, encode(picture))
    touch(page, "#inside-picture", 3, 2, GREY.width, GREY.height)
    expect(page.locator("#verdict")).to_have_text(VERDICT)
    chart = page.locator("#charts canvas")
    at = chart.bounding_box()
    assert at is not None
    expect(page.locator("#inside .chosen-key")).to_be_hidden()
    chart.click(position={"x": at["width"] * 0.6, "y": at["height"] / 2})
    expect(page.locator("#inside .chosen-key")).to_be_visible()
    chosen = int(page.input_value("#whatif-0"))
    assert 100 < chosen < 180
    page.fill("#whatif-0", "201")
    page.click("#whatif-form button[type=submit]")
    expect(page.locator("#whatif-results [data-status-panel]")).to_contain_text("a second")
    given, *ways = pixels(page, "#whatif-results .image-grid canvas")
    assert len(ways) == 8
    pixel = 2 * GREY.width + 3
    before = np.asarray(picture).ravel()[:pixel].tolist()
    for way in (given, *ways):
        assert way[0::4][: pixel + 1] == [*before, 201]
    assert not any(given[3::4][pixel + 1 :])


def test_continuation_without_suggested_value(visit: Open) -> None:
    """The fields still hold the values of another pixel, which must not be used."""
    page = visit("#inside")
    picture = random_picture()
    look_at(page, encode(picture))
    page.route("**/v1/distribution/pixel", lambda route: None)  # never answers
    touch(page, "#inside-picture", 3, 2, GREY.width, GREY.height)
    page.click("#whatif-form button[type=submit]")
    expect(page.locator("#whatif-results [data-status-panel]")).to_contain_text("a second")
    given = pixels(page, "#whatif-results .image-grid canvas")[0]
    pixel = 2 * GREY.width + 3
    assert all(given[3::4][:pixel])
    assert not any(given[3::4][pixel:])


def test_guidance_moved_while_a_pixel_loads_keeps_the_pixel(visit: Open) -> None:
    page = visit("#inside?seed=5&at=9&label=one")
    wait_until_measured(page)
    held: list[Route] = []
    asked: list[int] = []
    page.route("**/v1/distribution/pixel", lambda route: held.append(route), times=1)

    def note(request: Request) -> None:
        if "distribution" in request.url:
            asked.append(len(json.loads(request.post_data or "")["values"]))

    page.on("request", note)
    with page.expect_request("**/v1/distribution/pixel"):
        set_slider(page, "#inside-form [name=position]", 10)
    set_slider(page, "#whatif-sampling-guidance", 3)
    held[0].continue_()
    wait_until_measured(page)
    assert asked == [10, 10]


def test_browser_sampling_matches_head(visit: Open) -> None:
    """Compare sampling.js with the head's samples for an even grid of uniforms."""
    generator, count = torch.Generator().manual_seed(0), 1_000
    logits = torch.randn(2, 256, generator=generator, dtype=torch.float64)
    logits[:, 40:] -= 4
    labelled, plain = logits.softmax(-1).tolist()
    head, page = Head(tiny_config()), visit("#inside?n=1")
    uniforms = ((torch.arange(count) + 0.5) / count).unsqueeze(1).double()
    for temperature, g, top_p in (
        (1, 1, 1),
        (0.7, 2.5, 0.8),
        (1, 8, 0.9),
        (1.3, 0, 0.6),
        (0, 3, 0.5),
    ):
        heat, share, pull = (torch.full((count,), float(dial)) for dial in (temperature, top_p, g))
        each = (row.expand(count, -1) for row in logits)
        drawn = head.sample(next(each), uniforms, heat, share, pull, next(each))
        shown = page.evaluate(
            "async ([labelled, plain, dials]) =>"
            " (await import('/static/sampling.js')).applySampling(labelled, plain, dials)",
            [labelled, plain, {"temperature": temperature, "guidance": g, "top_p": top_p}],
        )
        seen = np.bincount(drawn[:, 0].numpy(), minlength=256) / count
        np.testing.assert_allclose(shown, seen, atol=2 / count)


COUNT_LISTENERS = """
    window.heard = 0;
    const { addEventListener } = EventTarget.prototype;
    EventTarget.prototype.addEventListener = function (...what) {
        if (this instanceof MediaQueryList) window.heard += 1;
        addEventListener.apply(this, what);
    };"""


def test_inside_view_of_colour_model(visit: Open) -> None:
    page = visit("#inside", script=COUNT_LISTENERS)
    wait_until_measured(page)
    before = page.evaluate("window.heard")
    assert before > 0
    pick_model(page, "colour")
    expect(page.locator("#charts canvas")).to_have_count(3)
    assert page.evaluate("window.heard") == before, "the charts of the old model still listen"
    wait_until_measured(page)
    expect(page.locator("#expected-text")).to_contain_text(
        re.compile("Red: most likely.*Blue: most likely")
    )
    expect(page.locator("#verdict")).to_have_text(VERDICT)
    expect(page.locator("#whatif-values input")).to_have_count(3)
    touch(page, "#inside-picture", 1, 1, COLOUR.width, COLOUR.height)
    for channel, value in enumerate((1, 2, 3)):
        page.fill(f"#whatif-{channel}", str(value))
    page.click("#whatif-form button[type=submit]")
    expect(page.locator("#whatif-results [data-status-panel]")).to_contain_text("a second")
    pixel = 1 * COLOUR.width + 1
    for image in pixels(page, "#whatif-results .image-grid canvas"):
        assert image[4 * pixel : 4 * pixel + 3] == [1, 2, 3]


def test_phone_shows_picture_to_chart_at_once(visit: Open) -> None:
    page = visit("#inside", **PHONE)
    wait_until_measured(page)
    order = ["#inside-picture", "#inside-position", "#verdict", "#charts canvas"]
    boxes = [box(page, selector) for selector in order]
    assert page.evaluate("() => scrollY") == 0
    assert boxes[0]["y"] >= 0
    for above, below in pairwise(boxes):
        assert above["bottom"] <= below["y"] + 1
    assert boxes[-1]["bottom"] <= box(page, "nav")["y"]


def test_link_opens_same_pixel(visit: Open) -> None:
    page = visit("#inside?seed=12&at=14")
    expect(page.locator("#inside-caption")).to_contain_text(
        re.compile("Seed 12 · .*bits per value")
    )
    expect(page.locator("#inside-position")).to_have_value("14")
    drawn = pixels(page, "#inside-picture")
    touch(page, "#inside-heatmap", 1, 1, GREY.width, GREY.height)
    expect(page).to_have_url(re.compile(f"seed=12&at={GREY.width + 1}$"))
    again = visit("#draw?n=1&seed=12")
    wait_until_drawn(again)
    shown = np.array(pixels(again, "#draw .image-grid canvas")[0]).reshape(-1, 4)
    looked = np.array(drawn[0]).reshape(-1, 4)
    assert np.array_equal(shown[:15, :3], looked[:15, :3])


def test_link_contains_uploaded_picture(visit: Open) -> None:
    page = visit("#inside?seed=5")
    wait_until_measured(page)
    drawn = pixels(page, "#inside-heatmap")
    picture = random_picture(seed=4)
    look_at(page, encode(picture))
    touch(page, "#inside-picture", 0, 5, GREY.width, GREY.height)
    expect(page).to_have_url(re.compile(f"at={5 * GREY.width}$"))
    again = visit(url_hash(page))
    expect(again.locator("#inside-caption")).to_contain_text("bits per value")
    expect(again.locator("#inside-position")).to_have_value(str(5 * GREY.width))
    shown = pixels(again, "#inside-picture")[0][0::4][: 5 * GREY.width]
    assert shown == np.asarray(picture).ravel()[: 5 * GREY.width].tolist()
    page.go_back()
    expect(page).to_have_url(re.compile("seed=5"))
    expect(page.locator("#inside-caption")).to_contain_text("drawn by the model")
    wait_until_measured(page)
    assert pixels(page, "#inside-heatmap") == drawn


def test_texts_of_rare_and_almost_expected_values(visit: Open) -> None:
    page = visit("#inside")
    none = {"channels": [{"probabilities": [1.0] + 255 * [0.0]}]}
    page.route("**/v1/distribution/pixel", lambda route: route.fulfill(json=none))
    look_at(page, encode(random_picture()))
    set_slider(page, "#inside-position", 7)
    expect(page.locator("#expected-text")).to_contain_text("(under 0.01 %, over 100 bits)")
    expect(page.locator("#verdict")).to_have_text(VERDICT)  # from the measured bits
    text = page.evaluate(
        """async () => (await import("./static/format.js")).describeSurprise([0], [12], 3.14)"""
    )
    assert text == "Almost as expected, another shade of black (12, not 0): 3.1 bits."


def test_expected_colour_conditions_on_expected_channels(visit: Open) -> None:
    """The fake model expects (10, 20, 30), each channel given the expected ones before it."""
    page = visit("#inside?model=colour")

    def answer(route: Route) -> None:
        requested: Any = route.request.post_data_json
        values = requested["values"]
        before = values[len(values) // 3 * 3 :]
        channels = []
        for k in range(len(before) + 1):
            best = 10 * (k + 1) if before[:k] == [10, 20][:k] else 200
            channels.append({"probabilities": [float(value == best) for value in range(256)]})
        route.fulfill(json={"channels": channels})

    page.route("**/v1/distribution/pixel", answer)
    look_at(page, encode(random_picture(COLOUR)))
    set_slider(page, "#inside-position", 7)
    for channel, value in enumerate((10, 20, 30)):
        expect(page.locator(f"#whatif-{channel}")).to_have_value(str(value))


def test_replay_pauses(visit: Open) -> None:
    page = visit("#inside")
    look_at(page, encode(random_picture()))
    play, slider = page.locator("#inside-play"), page.locator("#inside-position")
    for stop, then in (
        ("#inside-play", "Continue"),
        ("#whatif-form button[type=submit]", "Replay"),
    ):
        page.select_option("#inside-speed", index=0)
        play.click()
        expect(play).to_have_text("Pause")
        page.click(stop)
        expect(play).to_have_text(then)
        at = slider.input_value()
        page.wait_for_timeout(600)
        assert slider.input_value() == at
    expect(page.locator("#whatif-results [data-status-panel]")).to_contain_text("a second")
    assert slider.input_value() == at


def test_old_prediction_is_cleared(visit: Open) -> None:
    page = visit("#inside", allowed=["ERR_FAILED"])
    look_at(page, encode(random_picture()))
    expect(page.locator("#verdict")).to_have_text(VERDICT)
    page.route("**/v1/samples", lambda route: route.abort())
    page.route("**/v1/distribution/pixel", lambda route: None)
    page.click("#inside-new")
    for line in ("#verdict", "#expected-text", "#heatmap-max"):
        expect(page.locator(line)).to_have_text("")
