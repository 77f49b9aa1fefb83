"""Tests of the view "Play"."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import httpx
import numpy as np
from PIL import Image

from tests.page.helpers import Open, drawn_as, expect, pixels, wait_until_drawn
from tests.page.test_links import CLIPBOARD, copied
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import DEADLINE, GREY, encode

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

HALF = GREY.width * (GREY.height // 2)


def play(page: Page, label: str) -> str:
    """Guess the current picture and return the status."""
    page.click(f"#play-choices >> text='{label}'")
    status = page.locator("#play-status")
    expect(status).to_contain_text("the model says")
    return status.text_content() or ""


def test_only_upper_half_is_shown(visit: Open) -> None:
    page = visit("#play?seed=3")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    shown = np.array(pixels(page, "#play-canvas")[0]).reshape(-1, 4)
    drawn = shown[:, 3] > 0
    assert drawn[:HALF].all()
    assert not drawn[HALF + 1 :].any()  # except the cursor
    play(page, "zero")
    whole = np.array(pixels(page, "#play-canvas")[0]).reshape(-1, 4)
    assert (whole[:, 3] == 255).all()
    assert np.array_equal(whole[:HALF], shown[:HALF])


def test_first_round_starts_while_others_are_drawn(visit: Open, grey: FakeDecoder) -> None:
    page = visit()
    wait_until_drawn(page)
    go_on = threading.Event()

    def wait(slots: list[int]) -> None:
        if grey.positions[slots].max() > HALF:
            assert go_on.wait(DEADLINE)

    grey.before_step = wait
    page.goto(page.url.split("#")[0] + "#play?seed=3")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    page.click("#play-choices >> text='zero'")
    expect(page.locator("#play-status")).to_contain_text("the model says")
    before = np.array(pixels(page, "#play-canvas")[0]).reshape(-1, 4)
    assert not before[:, 3].all()
    go_on.set()
    page.wait_for_function(
        "() => document.querySelector('#play-canvas').getContext('2d')"
        ".getImageData(0, 0, 5, 6).data.every((v, k) => k % 4 < 3 || v)"
    )


def test_scores_and_share_text(visit: Open) -> None:
    page = visit("#play?seed=3", permissions=CLIPBOARD)
    base = page.url.split("#")[0]
    requested = {"n": 5, "seed": 3, "label": "random", "output": "values", "model": "grey"}
    images = httpx.post(f"{base}v1/samples", json=requested, timeout=60).json()["images"]
    theirs = 0
    for k, image in enumerate(images):
        expect(page.locator("#play-status")).to_contain_text(f"Picture {k + 1} of 5")
        wrong = next(label for label in GREY.classes if label != image["label"])
        status = play(page, wrong if k == 2 else image["label"])
        assert f"it was {drawn_as(image['label'])}." in status
        expect(page.locator("#play-choices .right")).to_have_text(image["label"])
        expect(page.locator("#play-choices .wrong")).to_have_count(int(k == 2))
        picture = encode(_picture(image["values"]))
        costs = {
            label: sum(_bits(base, picture, label)[:HALF]) for label in GREY.classes
        }  # fmt: skip
        best = min(costs, key=lambda label: costs[label])
        assert f"the model says {best} (" in status
        theirs += best == image["label"]
        mine = k + 1 - (k >= 2)
        expect(page.locator("#play-score")).to_have_text(
            f"You {mine}, the model {theirs}, of {k + 1}."
        )
        if k < 4:
            page.click("#play-next")
    answers = ["right", "right", "wrong", "right", "right"]
    for k, answer in enumerate(answers):
        square = page.locator("#play-squares").get_by_role("img", name=f"Picture {k + 1}: {answer}")
        expect(square).to_have_class(answer)
    recap = page.locator("#play-recap li")
    expect(recap).to_have_count(5)
    expect(recap.nth(2)).to_contain_text(f"It was {drawn_as(images[2]['label'])}. You: ")
    expect(recap.nth(2)).to_contain_text("% sure")
    page.click("#play-share")
    expect(page.locator("#play-status")).to_contain_text("Result copied")
    text = copied(page)
    assert text.startswith("🟩🟩🟥🟩🟩 ")
    assert f"I guessed 4 of 5 pictures; the model that drew them guessed {theirs}." in text
    again = visit("?" + text.partition("?")[2])
    expect(again.locator("#play-status")).to_contain_text("Picture 1 of 5")
    first = np.array(pixels(again, "#play-canvas")[0]).reshape(-1, 4)[:HALF, 0].tolist()
    assert first == images[0]["values"][:HALF]
    page.click("#play-again")
    expect(page).to_have_url(re.compile(r"#play\?model=grey&seed=(?!3$)"))
    page.go_back()
    expect(page).to_have_url(re.compile(r"#play\?model=grey&seed=3$"))
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")


def _picture(values: list[int]) -> Image.Image:
    return Image.fromarray(np.array(values, np.uint8).reshape(GREY.height, GREY.width))


def _bits(base: str, picture: bytes, label: str) -> list[float]:
    reply = httpx.post(
        f"{base}v1/score",
        files={"image": picture},
        data={"label": label, "per_pixel": "true", "model": "grey"},
        timeout=60,
    )
    bits: list[float] = reply.json()["data"][0]["pixel_bits"]
    return bits


def test_busy_server_is_retried(visit: Open) -> None:
    page = visit(allowed=["429"])
    wait_until_drawn(page)  # the initial drawing
    requested: list[str] = []

    def busy(route: Route) -> None:
        requested.append(route.request.url)
        if len(requested) % 2:
            error = {"message": "full", "type": "rate_limit_error", "param": None, "code": None}
            route.fulfill(status=429, json={"error": error}, headers={"Retry-After": "0.01"})
        else:
            route.continue_()

    page.route("**/v1/score", busy)
    page.route("**/v1/samples", busy)
    page.goto(page.url.split("#")[0] + "#play?seed=3")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    play(page, "zero")
    assert len(requested) == 2 * (1 + len(GREY.classes))
