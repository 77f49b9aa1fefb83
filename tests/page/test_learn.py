"""Tests of the view "Learn" and its four scenes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.page.helpers import Open, expect, pixels
from tests.service.fixtures import COLOUR, GREY, FakeDecoder, build, listening, tiny_model

if TYPE_CHECKING:
    from playwright.sync_api import Route

MODELS = {"grey": GREY, "colour": COLOUR}


def count(text: str | None) -> int:
    found = re.match(r"\d+", text or "")
    assert found is not None, text
    return int(found[0])


@pytest.mark.parametrize("name", MODELS)
def test_dice_roll_once_and_to_the_end(visit: Open, name: str) -> None:
    config = MODELS[name]
    page = visit(f"#learn?model={name}")
    counter, status = (
        page.locator("#scene-dice [data-count]"),
        page.locator("#scene-dice [data-status]"),
    )
    expect(page.locator("#learn")).to_be_visible()
    roll, rest = page.locator("#scene-dice button").all()
    expect(roll).to_be_enabled()
    start = count(counter.text_content())
    for _ in range(config.channels):
        roll.click()
        expect(status).to_have_text(re.compile(r"The dice say \d+.*a chance of .* %\."))
        expect(roll).to_be_enabled()
    assert count(counter.text_content()) == start + 1
    before = np.array(pixels(page, "#scene-dice canvas.drawing")[0]).reshape(-1, 4)
    rest.click()
    expect(status).to_contain_text(f"{config.pixels} pixels, each a roll")
    after = np.array(pixels(page, "#scene-dice canvas.drawing")[0]).reshape(-1, 4)
    assert np.array_equal(after[: start + 1], before[: start + 1])
    assert after[:, 3].all()
    rest.click()  # "Begin again"
    expect(roll).to_be_enabled()
    assert count(counter.text_content()) == start


def test_final_message_waits_for_animation(visit: Open) -> None:
    page = visit("#learn?model=colour", reduced_motion="no-preference")
    _, rest = page.locator("#scene-dice button").all()
    expect(rest).to_be_enabled()
    rest.click()
    expect(page.locator("#scene-dice [data-status]")).to_contain_text("each a roll")
    assert np.array(pixels(page, "#scene-dice canvas.drawing")[0]).reshape(-1, 4)[:, 3].all()
    counted = page.locator("#scene-dice [data-count]").text_content()
    assert count(counted) == COLOUR.pixels


def test_memory_counts(visit: Open) -> None:
    page = visit("#learn?model=grey")
    page.click("#scene-memory button")
    fixed, growing = page.locator("#scene-memory .meter").all()
    expect(fixed).to_contain_text(f"1 state; read {GREY.pixels} times")
    expect(growing).to_contain_text(f"{GREY.pixels} pixels kept")
    expect(growing).to_contain_text(f"{GREY.pixels * (GREY.pixels - 1) // 2} looked back at")


def test_memory_text_depends_on_attention(visit: Open) -> None:
    models = {"linear": GREY, "softmax": replace(GREY, attention="softmax")}
    app_state, app = build(decoders={name: FakeDecoder(c, 8) for name, c in models.items()})
    with listening(app, lambda: app_state.ready) as url:
        page = visit("#learn?model=linear", url=url)
        scene = page.locator("#scene-memory")
        expect(scene).to_contain_text("This model adds", use_inner_text=True)
        expect(scene).not_to_contain_text("it keeps every pixel", use_inner_text=True)
        page.select_option("#model", "softmax")
        expect(scene).to_contain_text("it keeps every pixel", use_inner_text=True)
        expect(scene).not_to_contain_text("This model adds", use_inner_text=True)
        page.close()  # otherwise it sends requests to the stopped server


def test_bits_scene(visit: Open) -> None:
    page = visit("#learn?model=grey")
    status = page.locator("#scene-bits [data-status]")
    expect(status).to_have_text(
        re.compile(rf"^\d+ bits instead of {8 * GREY.pixels}: compressed .* times\.$")
    )


def test_busy_server_is_retried(visit: Open) -> None:
    page = visit("#draw?model=grey&n=1&seed=5", allowed=["429"])
    refused: list[str] = []

    def refuse_once(route: Route) -> None:
        path = route.request.url.rpartition("/")[2]
        if path in refused:
            route.continue_()
            return
        refused.append(path)
        error = {"message": "the queue is full", "type": "x", "param": None, "code": "queue_full"}
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": error})

    expect(page.locator("#draw [data-status-panel]")).to_contain_text("a second")
    for path in ("samples", "score", "distribution", "completions"):
        page.route(f"**/v1/{path}", refuse_once)
    page.click("nav [data-view=learn]")
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits instead of")
    expect(page.locator("#scene-dice button").first).to_be_enabled()
    page.click("#scene-limits button")
    expect(page.locator("#scene-limits .row canvas")).to_have_count(4)
    assert sorted(refused) == ["completions", "distribution", "samples", "score"]
    refused.clear()
    page.click("nav [data-view=complete]")
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert "samples" in refused


def test_limits_scene(visit: Open) -> None:
    page = visit("#learn?model=grey")
    page.click("#scene-limits button")
    expect(page.locator("#scene-limits .row canvas")).to_have_count(4)
    given, *ways = (np.array(p).reshape(-1, 4) for p in pixels(page, "#scene-limits .row canvas"))
    known = given[:, 3] > 0
    assert known[GREY.pixels // 2 :].all()
    assert not known[: GREY.pixels // 2].any()
    assert all(np.array_equal(way[known], given[known]) for way in ways)
    assert len({way.tobytes() for way in ways}) == 3


def test_model_facts(visit: Open) -> None:
    page = visit("#learn?model=grey")
    facts = page.locator("#learn-facts")
    parameters = sum(p.numel() for p in tiny_model().parameters())
    for text in (f"{parameters:,}", f"{GREY.width} × {GREY.height} grey", "a frog", "not measured"):
        expect(facts).to_contain_text(text)
    page.select_option("#model", "colour")
    expect(page.locator("#learn-model")).to_have_text("colour")
    expect(facts).to_contain_text(f"{COLOUR.width} × {COLOUR.height} colour")
