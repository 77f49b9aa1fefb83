"""While the server is away, who waits is told, and what waits goes on once it is there again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.page.helpers import Open, expect, finished, measured, slide

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

LOST = "Connection lost. Reconnecting in"
QUICK = """() => {
    const wait = window.setTimeout;
    window.setTimeout = (act, ms, ...rest) => wait(act, ms / 50, ...rest);
}"""


def lose(page: Page, path: str, times: int) -> None:
    """Lose the first requests for this path."""
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        if len(asked) > times:
            route.continue_()
        else:
            route.abort()

    page.route(f"**/v1/{path}", answer)


def listen(page: Page, *lines: str) -> None:
    """Note, from now on, whatever these lines say."""
    page.evaluate(
        """(lines) => {
            window.told = Object.fromEntries(lines.map((line) => [line, []]));
            for (const line of lines) {
                const place = document.querySelector(line);
                new MutationObserver(() => window.told[line].push(place.textContent))
                    .observe(place, { childList: true, subtree: true });
            }
        }""",
        lines,
    )


def scored(page: Page, times: int) -> None:
    """Wait until the model was asked for its guess so many times."""
    page.wait_for_function(
        """(times) => performance.getEntriesByType("resource")
            .filter(({ name }) => name.endsWith("/v1/score")).length >= times""",
        arg=times,
    )


def test_the_scenes_tell_that_they_wait_and_go_on(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED"])
    finished(page)
    dice, bits, limits = (f"#scene-{name} [data-status]" for name in ("dice", "bits", "limits"))
    listen(page, dice, bits, limits)
    for path in ("samples", "score", "distribution", "completions"):
        lose(page, path, 2)
    page.click("nav [data-view=learn]")
    expect(page.locator(bits)).to_contain_text("bits instead of")
    roll = page.locator("#scene-dice button").first
    expect(roll).to_be_enabled()
    expect(page.locator(dice)).to_be_empty()
    page.click("#scene-limits button")
    expect(page.locator(limits)).to_contain_text("without looking")
    told = page.evaluate("window.told")
    for line in (dice, bits, limits):
        assert any(LOST in sentence for sentence in told[line]), told


def test_scenes_that_were_given_up_begin_anew_by_themselves(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED"])
    finished(page)
    page.evaluate(QUICK)
    page.route("**/v1/*", lambda route: route.abort())
    page.click("nav [data-view=learn]")
    dice, bits = (page.locator(f"#scene-{name} [data-status]") for name in ("dice", "bits"))
    for said in (dice, bits):
        expect(said).to_contain_text("cannot be reached")
    bits.click()  # which begins nothing
    page.unroute("**/v1/*")
    expect(bits).to_contain_text("bits instead of")
    expect(page.locator("#scene-dice button").first).to_be_enabled()


def test_a_scene_that_a_person_began_anew_is_left_to_them(visit: Open) -> None:
    page = visit(allowed=["ERR_FAILED"])
    finished(page)
    page.evaluate(QUICK)
    for path in ("*", "models"):  # the page looks for the latter
        page.route(f"**/v1/{path}", lambda route: route.abort())
    page.click("nav [data-view=learn]")
    dice, bits = (page.locator(f"#scene-{name} [data-status]") for name in ("dice", "bits"))
    expect(bits).to_contain_text("cannot be reached")
    roll, again = page.locator("#scene-dice button").all()
    expect(again).to_have_text("Begin again")
    page.unroute("**/v1/*")
    again.click()
    roll.click()
    expect(dice).to_contain_text("The dice say")
    page.unroute("**/v1/models")
    expect(bits).to_contain_text("bits instead of")
    expect(dice).to_contain_text("The dice say")


def test_examples_that_do_not_come_say_why(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    listen(page, "#editor-status")
    lose(page, "samples", 6)
    page.click("nav [data-view=complete]")
    expect(page.locator("#examples canvas")).to_have_count(6)
    expect(page.locator("#editor-status")).to_be_empty()
    told = page.evaluate("window.told['#editor-status']")
    assert any(LOST in sentence for sentence in told), told


def test_looking_inside_tells_that_it_waits(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    report = "#inside .actions [data-report]"
    listen(page, report)
    for path in ("samples", "score"):
        lose(page, path, 1)
    page.goto(page.url.split("#")[0] + "#inside?seed=5&at=3")
    measured(page)
    expect(page.locator(report)).to_be_empty()
    told = page.evaluate(f"window.told['{report}']")
    assert any(LOST in sentence for sentence in told), told


def test_looking_inside_complains_no_longer_than_the_server_is_away(visit: Open) -> None:
    page = visit("#inside?seed=5", allowed=["ERR_FAILED"])
    measured(page)
    page.route("**/v1/distribution", lambda route: route.abort())
    slide(page, "#inside-position", 3)
    expect(page.locator("#inside [role=alert]")).to_contain_text("cannot be reached")
    page.unroute("**/v1/distribution")
    slide(page, "#inside-position", 4)
    expect(page.locator("#inside [role=alert]")).to_have_count(0)


@pytest.mark.parametrize("other", ["pixel", "model"])
def test_a_question_that_was_lost_takes_none_after_it_along(visit: Open, other: str) -> None:
    page = visit("#inside?seed=5", allowed=["ERR_FAILED"])
    measured(page)
    asked: list[Route] = []

    def hold_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page.route("**/v1/distribution", hold_first)
    with page.expect_request("**/v1/distribution"):
        slide(page, "#inside-position", 3)
    if other == "pixel":
        slide(page, "#inside-position", 4)
    else:
        page.select_option("#model", "colour")
        expect(page.locator("#inside-caption")).to_contain_text("bits/dim")
    listen(page, "#inside .actions [data-report]")
    asked[0].abort()
    expect(page.locator("#expected-text")).to_contain_text("ost likely")
    expect(page.locator("#charts")).to_have_attribute("aria-busy", "false")
    assert len(asked) > 1
    if other == "model":
        told = page.evaluate("Object.values(window.told).flat()")
        assert not any("cannot be reached" in sentence for sentence in told)


def test_the_game_tells_that_it_waits_for_the_models_guess(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    page.route("**/v1/score", lambda route: route.abort())
    page.click("nav [data-view=play]")
    said = page.locator("#play-status")
    expect(said).to_have_text("Picture 1 of 5. What will it be?")
    scored(page, 2)
    expect(said).to_have_text("Picture 1 of 5. What will it be?")  # nobody waits for it yet
    page.click("#play-choices >> text='zero'")
    expect(said).to_have_text(re.compile(rf"meant to be .*\. {LOST}"))
    page.unroute("**/v1/score")
    expect(said).to_contain_text("the model says")


def test_a_guess_that_was_lost_while_nobody_waited_is_asked_for_again(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["ERR_FAILED"])
    finished(page)
    page.evaluate(QUICK)
    page.route("**/v1/score", lambda route: route.abort())
    page.click("nav [data-view=play]")
    expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    scored(page, 8)  # and given up
    page.unroute("**/v1/score")
    page.click("#play-choices >> text='zero'")
    expect(page.locator("#play-status")).to_contain_text("the model says")
