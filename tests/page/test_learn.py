"""Tests of the view "Learn" and its four scenes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tests.page.helpers import (
    Open,
    canvas_pngs,
    expect,
    listen,
    pick_model,
    pixels,
    wait_for_text,
)
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import COLOUR, GREY, build, listening, tiny_model

if TYPE_CHECKING:
    from playwright.sync_api import Route


def count(text: str | None) -> int:
    found = re.match(r"\d+", text or "")
    assert found is not None, text
    return int(found[0])


def test_dice_roll_once_and_to_the_end(visit: Open) -> None:
    page = visit("#learn?model=grey")
    counter, verdict = (page.locator(f"#scene-dice [data-dice-{n}]") for n in ("count", "verdict"))
    roll, rest = (page.locator(f"#scene-dice [data-dice-{name}]") for name in ("roll", "finish"))
    expect(verdict).to_contain_text("Next:")
    start = count(counter.text_content())
    listen(page, "#scene-dice [data-dice-verdict]")
    roll.click()
    shown = r"The dice say \d+.*a chance of .*\s%\."
    wait_for_text(page, "#scene-dice [data-dice-verdict]", shown)
    expect(counter).to_contain_text(f"{start + 1} of")
    bars = canvas_pngs(page, "#scene-dice [data-dice-charts] canvas")
    rest.click()
    expect(page.locator("#scene-dice [data-status]")).to_contain_text(
        f"{GREY.pixels} pixels are drawn."
    )
    expect(verdict).to_contain_text("The last pixel")
    assert canvas_pngs(page, "#scene-dice [data-dice-charts] canvas") != bars, "the bars go on"
    assert np.array(pixels(page, "#scene-dice canvas.drawing")[0]).reshape(-1, 4)[:, 3].all()
    page.click("#scene-dice [data-dice-restart]")
    expect(roll).to_be_enabled()


def test_final_message_waits_for_animation(visit: Open) -> None:
    page = visit("#learn?model=colour", reduced_motion="no-preference")
    rest = page.locator("#scene-dice [data-dice-finish]")
    expect(rest).to_be_enabled()
    rest.click()
    expect(page.locator("#scene-dice [data-status]")).to_contain_text("pixels are drawn")
    assert np.array(pixels(page, "#scene-dice canvas.drawing")[0]).reshape(-1, 4)[:, 3].all()
    counted = page.locator("#scene-dice [data-dice-count]").text_content()
    assert count(counted) == COLOUR.pixels


def test_scenes_of_memory_bits_limits_and_facts(visit: Open) -> None:
    page = visit("#learn?model=grey")
    expect(page.locator("#scene-bits [data-status]")).to_have_text(
        re.compile(rf"^\d+ bits instead of {8 * GREY.pixels}: compressed .* times\.$")
    )
    page.click("#scene-memory button")
    fixed, growing = page.locator("#scene-memory .meter").all()
    expect(fixed).to_contain_text("reads one state")
    expect(growing).to_contain_text(f"looks at {GREY.pixels - 1} kept pixels")
    expect(page.locator("#scene-memory [data-status]")).to_have_text(
        "For its last pixel, this model read one state; "
        f"an ordinary one would have looked at {GREY.pixels - 1} pixels."
    )
    page.click("#scene-limits button")
    expect(page.locator("#scene-limits .row canvas")).to_have_count(4)
    given, *ways = (np.array(p).reshape(-1, 4) for p in pixels(page, "#scene-limits .row canvas"))
    known = given[:, 3] > 0
    assert known[GREY.pixels // 2 :].all()
    assert not known[: GREY.pixels // 2].any()
    assert all(np.array_equal(way[known], given[known]) for way in ways)
    assert len({way.tobytes() for way in ways}) == 3
    facts = page.locator("#learn-facts")
    parameters = sum(p.numel() for p in tiny_model().parameters())
    for text in (f"{parameters:,}", f"{GREY.width} × {GREY.height} grey", "a frog", "not measured"):
        expect(facts).to_contain_text(text)
    pick_model(page, "colour")
    expect(page.locator("#learn-model")).to_have_text("colour")
    expect(facts).to_contain_text(f"{COLOUR.width} × {COLOUR.height} colour")


def test_texts_depend_on_the_model(visit: Open) -> None:
    models = {"linear": GREY, "softmax": replace(GREY, attention="softmax")}
    app_state, app = build(decoders={name: FakeDecoder(c, 8) for name, c in models.items()})
    with listening(app, lambda: app_state.ready) as url:
        app_state.models["linear"].checkpoint.facts["test"] = {"bits_per_dim": 2.5}
        page = visit("#learn?model=linear", url=url)
        hint = page.locator("#scene-bits [data-test-set]")
        expect(hint).to_contain_text("on average")
        expect(hint).not_to_contain_text("easy")
        scene = page.locator("#scene-memory")
        expect(scene).to_contain_text("This model adds", use_inner_text=True)
        expect(scene).not_to_contain_text("it keeps every pixel", use_inner_text=True)
        pick_model(page, "softmax")
        expect(scene).to_contain_text("it keeps every pixel", use_inner_text=True)
        expect(scene).not_to_contain_text("This model adds", use_inner_text=True)
        page.close()  # otherwise it sends requests to the stopped server


def test_busy_server_is_retried(visit: Open) -> None:
    page = visit("#draw?model=grey&n=1&seed=5", allowed=["429"])
    refused: list[str] = []

    def refuse_once(route: Route) -> None:
        path = route.request.url.rpartition("/v1/")[2]
        if path in refused:
            route.continue_()
            return
        refused.append(path)
        error = {"message": "the queue is full", "type": "x", "param": None, "code": "queue_full"}
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={"error": error})

    expect(page.locator("#draw [data-status-panel]")).to_contain_text("a second")
    for path in ("samples", "score", "distribution/pixel", "completions"):
        page.route(f"**/v1/{path}", refuse_once)
    page.click("nav [data-view=learn]")
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits instead of")
    expect(page.locator("#scene-dice [data-dice-roll]")).to_be_enabled()
    page.click("#scene-limits button")
    expect(page.locator("#scene-limits .row canvas")).to_have_count(4)
    assert sorted(refused) == ["completions", "distribution/pixel", "samples", "score"]
    refused.clear()
    page.click("nav [data-view=complete]")
    expect(page.locator("#examples canvas")).to_have_count(6)
    assert "samples" in refused
