"""Tests of the sampling sliders: temperature, guidance and top-p."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from tests.page.helpers import (
    Open,
    drawn_as,
    expect,
    open_settings,
    set_slider,
    share,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.page.test_links import CLIPBOARD, copied
from tests.service.fixtures import GREY

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

TUNED = {"guidance": 2.0, "top_p": 0.98}


def set_model_defaults(page: Page) -> None:
    """Set the first model's default guidance and top_p."""

    def answer(route: Route) -> None:
        reply = route.fetch()
        models = reply.json()
        models["data"][0] |= TUNED
        route.fulfill(response=reply, json=models)

    page.route("**/v1/models", answer)
    page.reload()
    wait_until_drawn(page)


def test_views_start_at_the_defaults_of_the_model(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    set_model_defaults(page)
    for view in ("draw", "complete"):
        page.click(f"nav [data-view={view}]")
        wait_until_drawn(page, view)
        if view == "draw":
            open_settings(page)
        page.eval_on_selector_all(f"#{view} details", "all => all.forEach(d => { d.open = true; })")
        for name, value in TUNED.items():
            dial = page.locator(f"#{view}-sampling-{name}")
            expect(dial).to_have_value(f"{value:g}")
            words = dial.get_attribute("aria-describedby")
            expect(page.locator(f"#{words}")).to_be_visible()
    with page.expect_request("**/v1/samples") as drawn:
        page.click("nav [data-view=inside]")
    sent = drawn.value.post_data_json
    assert sent["label"] in GREY.classes, "guidance needs a class"
    assert {name: sent[name] for name in TUNED} == TUNED
    expect(page.locator("#inside-caption")).to_contain_text(drawn_as(sent["label"]))
    fields = parse_qs(url_hash(page).partition("?")[2])
    assert fields["label"] == [sent["label"]]
    assert (fields["guidance"], fields["top_p"]) == (["2"], ["0.98"])


def test_guidance_needs_class(visit: Open) -> None:
    page = visit(permissions=CLIPBOARD)
    wait_until_drawn(page)
    dial, words = (
        page.locator("#draw-sampling-guidance"),
        page.locator("#draw-sampling-guidance-hint"),
    )
    expect(dial).to_be_disabled()
    expect(words).to_contain_text("Choose a class")
    page.check("#draw-classes [value=one]")
    wait_until_drawn(page)
    expect(dial).to_be_enabled()
    expect(words).to_contain_text("more is plainer")
    open_settings(page)
    set_slider(page, "#draw-sampling-guidance", 3)
    set_slider(page, "#draw-sampling-top_p", 0.9)
    with page.expect_request("**/v1/samples") as drawn:
        page.click("#draw-form button[type=submit]")
    assert drawn.value.post_data_json["guidance"] == 3
    assert drawn.value.post_data_json["top_p"] == 0.9
    wait_until_drawn(page)
    assert {"label=one", "guidance=3", "top_p=0.9"} <= set(url_hash(page).split("&"))
    share(page, "#draw", "curl")
    expect(page.locator("#draw .share [role=status]")).to_contain_text("copied")
    sent = json.loads(copied(page).split("-d '")[1].split("'")[0])
    assert (sent["guidance"], sent["top_p"]) == (3, 0.9)


def test_guidance_of_completions(visit: Open) -> None:
    page = visit("#complete", permissions=CLIPBOARD)
    wait_until_drawn(page, "complete")
    page.click("#complete-form summary")
    expect(page.locator("#complete-sampling-guidance")).to_be_disabled()
    page.select_option("#complete-label", "a frog")
    set_slider(page, "#complete-sampling-guidance", 2)
    set_slider(page, "#complete-sampling-top_p", 0.95)
    before = url_hash(page)
    page.click("#complete-form button[type=submit]")
    expect(page).not_to_have_url(re.compile(re.escape(before) + "$"))
    wait_until_drawn(page, "complete")
    assert {"guidance=2", "top_p=0.95"} <= set(url_hash(page).split("&"))
    share(page, "#complete", "curl")
    expect(page.locator("#complete .share [role=status]")).to_contain_text("copied")
    assert "-F 'guidance=2'" in copied(page)


def test_controls_of_a_model_without_classes(visit: Open) -> None:
    page = visit("#draw?model=colour&n=1&seed=2")
    wait_until_drawn(page)
    open_settings(page)
    expect(page.locator("#draw-classes")).to_be_hidden()
    expect(page.locator("#draw-sampling-guidance")).to_be_hidden()
    expect(page.locator("#draw-sampling-top_p")).to_be_visible()
    axes = page.eval_on_selector_all("#draw-by option", "all => all.map(o => o.value)")
    assert axes == ["", "temperature", "top_p", "model"]
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    expect(page.locator("#complete-form [name=colour]")).to_be_visible()
    page.click("nav >> text=Play")
    expect(page.locator("#play-status")).to_contain_text("without classes")
    expect(page.locator("#play-choices button")).to_have_count(0)


def test_exact_link_values_are_used(visit: Open) -> None:
    """The values lie between the steps of the sliders, or beyond their bounds."""
    page = visit("#draw?n=2&seed=5&label=one&guidance=7&top_p=0.333&temperature=1.77")
    wait_until_drawn(page)
    with page.expect_request("**/v1/samples") as drawn:
        page.click("#draw-form button[type=submit]")
    requested = drawn.value.post_data_json
    assert (requested["guidance"], requested["top_p"], requested["temperature"]) == (7, 0.333, 1.77)
    expect(page.locator("#draw-sampling .value").nth(1)).to_have_text("7")


def test_sliders_change_chart(visit: Open) -> None:
    page = visit("#inside?seed=12&at=14&label=one")
    wait_until_measured(page)
    chart = "() => document.querySelector('#charts canvas').toDataURL()"
    plain = page.evaluate(chart)
    for name, value in (("temperature", 0.4), ("temperature", 1), ("top_p", 0.6), ("guidance", 4)):
        before = page.evaluate(chart)
        set_slider(page, f"#whatif-sampling-{name}", value)
        page.wait_for_function(f"before => ({chart})() !== before", arg=before)
        assert (page.evaluate(chart) == plain) is (value == 1)
