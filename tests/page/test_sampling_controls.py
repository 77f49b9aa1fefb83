"""Temperature, guidance and top-p: on every form, in links and commands, and explained."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from tests.page.helpers import Open, expect, finished, hash_of, measured, slide
from tests.page.test_links import CLIPBOARD, copied
from tests.service.fixtures import GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

TUNED = {"guidance": 2.0, "top_p": 0.98}


def tuned(page: Page) -> None:
    """Have the first model like guidance and top_p of its own."""

    def answer(route: Route) -> None:
        reply = route.fetch()
        models = reply.json()
        models["data"][0] |= TUNED
        route.fulfill(response=reply, json=models)

    page.route("**/v1/models", answer)
    page.reload()
    finished(page)


@pytest.mark.parametrize("view", ["draw", "complete"])
def test_the_dials_begin_where_the_model_likes_them(visit: Open, view: str) -> None:
    page = visit()
    finished(page)
    tuned(page)
    page.click(f"nav [data-view={view}]")
    finished(page, view)
    page.eval_on_selector_all(f"#{view} details", "all => all.forEach(d => { d.open = true; })")
    for name, value in TUNED.items():
        dial = page.locator(f"#{view}-sampling-{name}")
        expect(dial).to_have_value(f"{value:g}")
        words = dial.get_attribute("aria-describedby")
        expect(page.locator(f"#{words}")).to_be_visible()


def test_what_is_looked_into_is_of_a_class_where_the_model_is_guided(visit: Open) -> None:
    page = visit()
    finished(page)
    tuned(page)
    with page.expect_request("**/v1/samples") as drawn:
        page.click("nav [data-view=inside]")
    sent = drawn.value.post_data_json
    assert sent["label"] in GREY.classes
    assert {name: sent[name] for name in TUNED} == TUNED
    expect(page.locator("#inside-caption")).to_contain_text(f"drawn as {sent['label']}:")
    fields = parse_qs(hash_of(page).partition("?")[2])
    assert fields["label"] == [sent["label"]]
    assert (fields["guidance"], fields["top_p"]) == (["2"], ["0.98"])


def test_guidance_is_sent_with_a_class_and_says_why_not_without(visit: Open) -> None:
    page = visit()
    finished(page)
    dial, words = (
        page.locator("#draw-sampling-guidance"),
        page.locator("#draw-sampling-guidance-hint"),
    )
    expect(dial).to_be_disabled()
    expect(words).to_contain_text("needs a class")
    page.check("#draw-classes [value=one]")
    finished(page)
    expect(dial).to_be_enabled()
    expect(words).to_contain_text("more is plainer")
    slide(page, "#draw-sampling-guidance", 3)
    slide(page, "#draw-sampling-top_p", 0.9)
    with page.expect_request("**/v1/samples") as drawn:
        page.click("#draw-form button[type=submit]")
    assert drawn.value.post_data_json["guidance"] == 3
    assert drawn.value.post_data_json["top_p"] == 0.9
    finished(page)
    assert {"label=one", "guidance=3", "top_p=0.9"} <= set(hash_of(page).split("&"))


def test_completions_take_guidance_too(visit: Open) -> None:
    page = visit("#complete", permissions=CLIPBOARD)
    finished(page, "complete")
    page.click("#complete-form summary")
    expect(page.locator("#complete-sampling-guidance")).to_be_disabled()
    page.select_option("#complete-label", "a frog")
    slide(page, "#complete-sampling-guidance", 2)
    slide(page, "#complete-sampling-top_p", 0.95)
    before = hash_of(page)
    page.click("#complete-form button[type=submit]")
    expect(page).not_to_have_url(re.compile(re.escape(before) + "$"))
    finished(page, "complete")
    assert {"guidance=2", "top_p=0.95"} <= set(hash_of(page).split("&"))
    page.click("#complete [data-copy=curl]")
    expect(page.locator("#complete .share [role=status]")).to_contain_text("copied")
    assert "-F 'guidance=2'" in copied(page)


def test_a_model_without_classes_has_no_guidance(visit: Open) -> None:
    page = visit("#draw?model=colour&n=1&seed=2")
    finished(page)
    expect(page.locator("#draw-sampling-guidance")).to_be_hidden()
    expect(page.locator("#draw-sampling-top_p")).to_be_visible()


def test_a_links_very_values_are_drawn_with(visit: Open) -> None:
    """They lie between, or beyond, the steps of the sliders."""
    page = visit("#draw?n=2&seed=5&label=one&guidance=7&top_p=0.333&temperature=1.77")
    finished(page)
    with page.expect_request("**/v1/samples") as drawn:
        page.click("#draw-form button[type=submit]")
    asked = drawn.value.post_data_json
    assert (asked["guidance"], asked["top_p"], asked["temperature"]) == (7, 0.333, 1.77)
    expect(page.locator("#draw-sampling .value").nth(1)).to_have_text("7")


def test_a_command_names_the_dials(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5&label=one&guidance=3&top_p=0.5", permissions=CLIPBOARD)
    finished(page)
    page.click("#draw [data-copy=curl]")
    expect(page.locator("#draw .share [role=status]")).to_contain_text("copied")
    sent = json.loads(copied(page).split("-d '")[1].split("'")[0])
    assert sent["guidance"] == 3
    assert sent["top_p"] == 0.5


def test_the_dials_reshape_what_is_expected(visit: Open) -> None:
    page = visit("#inside?seed=12&at=14&label=one")
    measured(page)
    chart = "() => document.querySelector('#charts canvas').toDataURL()"
    for name, value in (("top_p", 0.6), ("guidance", 4)):
        before = page.evaluate(chart)
        slide(page, f"#whatif-sampling-{name}", value)
        page.wait_for_function(f"before => ({chart})() !== before", arg=before)
