"""Tests of the view "Draw" and of the viewer: classes, seeds, pace, cancelling, saving."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.page.helpers import (
    PHONE,
    Open,
    expect,
    fill_setting,
    follow_link,
    open_settings,
    pick_model,
    pixels,
    set_slider,
    set_value,
    url_hash,
    wait_until_drawn,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, until


def test_page_draws_at_once_and_link_repeats_it(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    assert page.locator("#draw .image-grid li").count() == 12
    expect(page.locator("#draw .image-grid small").first).to_contain_text("bits per value")
    first = pixels(page, "#draw .image-grid canvas")
    assert len({str(image) for image in first}) == 12
    address = page.url
    assert "seed=" in address
    again = visit(address.split("/")[-1])
    wait_until_drawn(again)
    assert pixels(again, "#draw .image-grid canvas") == first


def test_class_number_and_seed(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    fill_setting(page, "#draw-form [name=n]", "3")
    fill_setting(page, "#draw-form [name=seed]", "1234567")
    page.check("#draw-form [name=label][value='a frog']")
    captions = page.locator("#draw .image-grid small")
    expect(captions).to_have_count(3)
    expect(captions.last).to_contain_text("seed 1234569")
    assert "label=a+frog" in page.url
    wait_until_drawn(page)
    open_settings(page)
    page.click("#draw-form [data-dice]")
    expect(captions.first).not_to_contain_text("seed 1234567")
    wait_until_drawn(page)
    expect(page.locator("#draw-seed")).to_have_value("")
    seed = re.search(r"seed=(\d+)", url_hash(page))
    assert seed is not None
    assert int(seed[1]) < 100_000


def test_missing_number_gets_default(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5", **PHONE)
    wait_until_drawn(page)
    page.click("#draw-settings")
    fill_setting(page, "#draw-n", "")
    fill_setting(page, "#draw-seed", "-3")
    page.keyboard.press("Escape")
    page.click("#draw-form button[type=submit]")
    expect(page.locator("#draw .image-grid small")).to_have_count(12)
    wait_until_drawn(page)
    assert {"n=12", "seed=0"} <= set(url_hash(page).split("&"))


def test_pixel_count_is_exact(visit: Open) -> None:
    page = visit("#draw?n=37&seed=1")
    wait_until_drawn(page)
    expect(page.locator("#draw [data-status-panel]")).to_contain_text(
        f" {37 * GREY.pixels:,} pixels"
    )


def test_pixels_appear_one_by_one(visit: Open) -> None:
    page = visit("#draw?n=2&seed=1", reduced_motion="no-preference")
    caption = page.locator("#draw .image-grid small").first
    expect(caption).to_have_text("drawing")
    expect(page.locator("#draw .progress")).to_be_visible()
    page.click("text=Show all")
    expect(caption).to_contain_text("seed 1")
    wait_until_drawn(page)


def test_cancel_shows_drawn_pixels_with_reduced_motion(visit: Open, grey: FakeDecoder) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    row = pixels(page, "#draw .image-grid canvas")[0][: 4 * GREY.width]
    steps = len(grey.steps)
    grey.before_step = lambda slots: time.sleep(0.3) if len(grey.steps) > steps + 2 else None
    set_value(page, "#draw-n", "1")
    set_value(page, "#draw-seed", "5")
    with page.expect_response("**/v1/samples"):
        page.click("#draw-form button[type=submit]")
    until(lambda: len(grey.steps) > steps + 4)
    page.click("#draw [data-cancel]")
    expect(page.locator("#draw [data-status-panel]")).to_contain_text("drawn so far stay")
    expect(page.locator("#draw [data-cancel]")).to_be_hidden()
    expect(page.locator("#draw .results > .share [data-share-open]")).to_be_hidden()
    expect(page.locator("#draw .image-grid small")).to_have_text("unfinished")
    assert pixels(page, "#draw .image-grid canvas")[0][: 4 * GREY.width] == row


def test_viewer_steps_through_images(visit: Open) -> None:
    page = visit("#draw?n=3&seed=8")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    for button, seed in (("Next", 9), ("Previous", 8), ("Previous", 10), ("Next", 8)):
        page.locator("#viewer-others button", has_text=button).click()
        expect(page.locator("#viewer-facts")).to_contain_text(f"Seed {seed}")
    page.keyboard.press("Escape")
    follow_link(page, "#draw?n=1&seed=8")
    expect(page.locator("#draw .image-grid li")).to_have_count(1)
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    expect(page.locator("#viewer")).to_be_visible()
    expect(page.locator("#viewer-others")).to_be_hidden()


def test_image_is_enlarged_replayed_and_saved(visit: Open, tmp_path: Path) -> None:
    page = visit("#draw?n=2&seed=8")
    wait_until_drawn(page)
    shown = pixels(page, "#draw .image-grid canvas")[0]
    page.locator("#draw .image-grid button").first.click()
    expect(page.locator("#viewer-facts")).to_contain_text("Seed 8")
    assert pixels(page, "#viewer-canvas")[0] == shown
    page.click("#viewer-replay")
    with page.expect_download() as png:
        page.click("#viewer-png")
    with Image.open(png.value.path()) as saved:
        assert saved.size == (GREY.width, GREY.height)
        assert np.asarray(saved.convert("RGBA")).ravel().tolist() == shown
    page.keyboard.press("Escape")
    expect(page.locator("#viewer")).to_be_hidden()


def test_switching_model_draws_at_once(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    pick_model(page, "colour")
    wait_until_drawn(page)
    sizes = page.eval_on_selector_all(
        "#draw .image-grid canvas", "all => all.map(c => [c.width, c.height])"
    )
    assert sizes == [[COLOUR.width, COLOUR.height]] * 12
    expect(page.locator("#draw [data-status-panel]")).to_contain_text(
        f" {12 * COLOUR.pixels} pixels"
    )
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    pick_model(page, "grey")
    wait_until_drawn(page, "complete")
    page.click("nav >> text=Draw")
    wait_until_drawn(page)
    assert len(pixels(page, "#draw .image-grid canvas")[0]) == 4 * GREY.pixels


@pytest.mark.parametrize(
    ("label", "caption"), [("one", "drawn as a one"), pytest.param("", "", marks=pytest.mark.broad)]
)
def test_images_do_not_move_when_they_are_finished(visit: Open, label: str, caption: str) -> None:
    page = visit(f"#draw?n=8&seed=5&label={label}", reduced_motion="no-preference")
    expect(page.locator("#draw .image-grid small").first).to_have_text("drawing")

    def tops() -> list[float]:
        tiles = page.locator("#draw .image-grid li")
        return tiles.evaluate_all("all => all.map(e => e.getBoundingClientRect().y)")  # type: ignore[no-any-return]

    before = tops()
    wait_until_drawn(page)
    assert tops() == before
    expect(page.locator("#draw .image-grid .drawn-as").first).to_have_text(caption)


def test_settings_draw_again_from_the_same_seed(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    open_settings(page)
    with page.expect_request("**/v1/samples") as drawn:
        set_slider(page, "#draw-sampling-temperature", 0.5)
    sent = drawn.value.post_data_json
    assert (sent["seed"], sent["n"], sent["temperature"]) == (5, 2, 0.5)


def test_back_returns_to_the_drawing_before(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    first = pixels(page, "#draw .image-grid canvas")
    expect(page.locator("#draw-seed")).to_have_value("")  # the seed of a link applies once
    page.click("#draw-form button[type=submit]")
    expect(page).not_to_have_url(re.compile("seed=5&"))
    wait_until_drawn(page)
    assert pixels(page, "#draw .image-grid canvas") != first
    page.go_back()
    expect(page).to_have_url(re.compile("seed=5&"))
    expect(page.locator("#draw .image-grid .detail").first).to_have_text("seed 5")
    wait_until_drawn(page)
    assert pixels(page, "#draw .image-grid canvas") == first
