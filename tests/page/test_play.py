"""The game: five pictures guessed from their upper halves, against the model."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import httpx
import numpy as np
from PIL import Image

from tests.page.helpers import Open, expect, finished, pixels
from tests.page.test_links import CLIPBOARD, copied
from tests.service.fixtures import DEADLINE, GREY, FakeDecoder, encode

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

HALF = GREY.width * (GREY.height // 2)


def play(page: Page, label: str) -> str:
    """Guess the picture that is shown, and give what is said of it."""
    page.click(f"#play-choices >> text='{label}'")
    said = page.locator("#play-status")
    expect(said).to_contain_text("the model says")
    return said.text_content() or ""


def test_a_picture_is_shown_down_to_its_middle(visit: Open) -> None:
    page = visit("#play?seed=3")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    shown = np.array(pixels(page, "#play-canvas")[0]).reshape(-1, 4)
    drawn = shown[:, 3] > 0
    assert drawn[:HALF].all()
    assert not drawn[HALF + 1 :].any()  # but for the pixel to come
    play(page, "zero")
    whole = np.array(pixels(page, "#play-canvas")[0]).reshape(-1, 4)
    assert (whole[:, 3] == 255).all()
    assert np.array_equal(whole[:HALF], shown[:HALF])


def test_the_first_picture_is_guessed_while_the_others_are_drawn(
    visit: Open, grey: FakeDecoder
) -> None:
    page = visit()
    finished(page)
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


def test_guesses_are_counted_beside_the_models(visit: Open) -> None:
    page = visit("#play?seed=3", permissions=CLIPBOARD)
    base = page.url.split("#")[0]
    asked = {"n": 5, "seed": 3, "label": "random", "output": "values", "model": "grey"}
    images = httpx.post(f"{base}v1/samples", json=asked, timeout=60).json()["images"]
    theirs = 0
    for k, image in enumerate(images):
        expect(page.locator("#play-status")).to_contain_text(f"Picture {k + 1} of 5")
        wrong = next(label for label in GREY.classes if label != image["label"])
        said = play(page, wrong if k == 2 else image["label"])
        assert f"it is meant to be {image['label']}." in said
        picture = encode(_picture(image["values"]))
        costs = {
            label: sum(_bits(base, picture, label)[:HALF]) for label in GREY.classes
        }  # fmt: skip
        best = min(costs, key=lambda label: costs[label])
        assert f"the model says {best} (" in said
        theirs += best == image["label"]
        mine = k + 1 - (k >= 2)
        expect(page.locator("#play-score")).to_have_text(
            f"You {mine}, the model {theirs}, of {k + 1}."
        )
        if k < 4:
            page.click("#play-next")
    page.click("#play-share")
    expect(page.locator("#play-status")).to_contain_text("Score copied")
    text = copied(page)
    assert f"I guessed 4 of 5 pictures; the model that drew them guessed {theirs}." in text
    again = visit("#" + text.partition("#")[2])
    expect(again.locator("#play-status")).to_contain_text("Picture 1 of 5")
    first = np.array(pixels(again, "#play-canvas")[0]).reshape(-1, 4)[:HALF, 0].tolist()
    assert first == images[0]["values"][:HALF]
    page.click("#play-again")
    expect(page).to_have_url(re.compile(r"#play\?model=grey&seed=(?!3$)"))


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


def test_a_model_without_classes_says_why_there_is_nothing_to_guess(visit: Open) -> None:
    page = visit("#play?model=colour")
    expect(page.locator("#play-status")).to_contain_text("without classes")
    expect(page.locator("#play-choices button")).to_have_count(0)


def test_a_busy_server_is_asked_again(visit: Open) -> None:
    page = visit(allowed=["429"])
    finished(page)  # what is drawn first
    asked: list[str] = []

    def busy(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) % 2:
            error = {"message": "full", "type": "rate_limit_error", "param": None, "code": None}
            route.fulfill(status=429, json={"error": error}, headers={"Retry-After": "0.01"})
        else:
            route.continue_()

    page.route("**/v1/score", busy)
    page.route("**/v1/samples", busy)
    page.goto(page.url.split("#")[0] + "#play?seed=3")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    play(page, "zero")
    assert len(asked) == 2 * (1 + len(GREY.classes))
