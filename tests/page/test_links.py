"""Tests of links, browser history, copying and sharing."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.page.helpers import (
    Open,
    expect,
    follow_link,
    open_complete_without_examples,
    pick_model,
    pixels,
    set_value,
    share,
    url_hash,
    wait_until_drawn,
    wait_until_measured,
)
from tests.service.fixtures import GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

CLIPBOARD = ["clipboard-read", "clipboard-write"]


def copied(page: Page) -> str:
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def drawings(page: Page) -> list[str]:
    """Return a list that collects the requests with seed 5; other views may use other seeds."""
    seen: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST" and '"seed":5' in (request.post_data or ""):
            seen.append(request.url)

    page.on("request", note)
    return seen


def test_views_keep_their_content_and_model(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&model=colour")
    wait_until_drawn(page)
    shown, address = pixels(page, "#draw .image-grid canvas"), url_hash(page)
    page.click("nav >> text=Learn")
    expect(page.locator("#learn")).to_be_visible()
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
    expect(page.locator("#scene-dice [data-dice-roll]")).to_be_enabled()
    requested = drawings(page)
    page.click("nav >> text=Draw")
    assert url_hash(page) == address
    assert pixels(page, "#draw .image-grid canvas") == shown
    page.wait_for_timeout(300)  # longer than the delay of a redraw
    assert requested == []
    page.reload()
    wait_until_drawn(page)
    assert len(requested) == 1
    page.click("nav >> text=Learn")
    assert "model=colour" in url_hash(page)
    page.reload()
    expect(page.locator("#learn-model")).to_have_text("colour")


def test_back_returns_from_view_that_opened_an_image(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    shown = pixels(page, "#draw .image-grid canvas")
    for view in ("inside", "complete"):
        page.locator("#draw .image-grid button").first.click()
        page.click(f"#viewer-{view}")
        if view == "inside":
            wait_until_measured(page)
        else:
            wait_until_drawn(page, view)
        opened = url_hash(page)
        assert opened.startswith(f"#{view}?")
        requested = drawings(page)
        page.go_back()
        expect(page.locator("#draw")).to_be_visible()
        assert pixels(page, "#draw .image-grid canvas") == shown
        assert requested == []
        page.go_forward()
        expect(page.locator(f"#{view}")).to_be_visible()
        assert url_hash(page) == opened
        page.go_back()
        expect(page.locator("#draw")).to_be_visible()


def test_back_undoes_one_change_and_then_leaves_the_view(visit: Open) -> None:
    """Opening a link replaces its history entry instead of adding one."""
    page = visit("#draw?n=1&seed=1")
    wait_until_drawn(page)
    # As for a visitor who goes back, or to a link, as soon as anything is drawn.
    page.evaluate("() => { const now = performance.now(); performance.now = () => now; }")
    start = page.url
    for link, settled, change in (
        ("watch?seed=5", "model=grey&seed=5", "[data-dice-restart]"),
        ("inside?seed=5", r"seed=5&at=\d+", "#inside-new"),
        ("play?seed=5", "model=grey", None),
        ("complete", "model=grey.*seed=", "#examples li:nth-child(2) button"),
        ("complete?own=1", "model=grey", None),
    ):
        follow_link(page, link)
        expect(page).to_have_url(re.compile(rf"#{link.partition('?')[0]}\?.*{settled}"))
        if change:
            expect(page.locator(change)).to_be_enabled()
            before = page.url
            page.click(change)
            expect(page).not_to_have_url(before)
            page.go_back()
            expect(page).to_have_url(before)
            expect(page.locator(f"#{link.partition('?')[0]}")).to_be_visible()
        page.go_back()
        expect(page).to_have_url(start)
        expect(page.locator("#draw")).to_be_visible()


def test_back_is_not_undone_by_a_drawing_that_starts(visit: Open) -> None:
    """The address changes before its hashchange event, and the view may set a link between them."""
    page = visit("#draw?n=1&seed=1")
    wait_until_drawn(page)
    before = page.url
    page.click("nav >> text=Complete")
    wait_until_drawn(page, "complete")
    page.evaluate("""() => addEventListener("popstate",
        () => document.getElementById("blank").click(), { once: true })""")
    page.go_back()
    expect(page.locator("#draw")).to_be_visible()
    assert page.url == before


def test_back_returns_to_the_example_before_after_an_early_leave(visit: Open) -> None:
    """A view that was left before it had set its link adds history entries once it is shown."""
    page = visit("#draw?n=1&seed=1")
    held = open_complete_without_examples(page)
    expect(page.locator("#examples li")).to_have_count(6)
    page.click("nav >> text=Draw")
    expect(page.locator("#draw")).to_be_visible()
    for route in held:
        route.continue_()
    expect(page.locator("#examples canvas")).to_have_count(6)
    page.click("nav >> text=Complete")
    expect(page).to_have_url(re.compile("image="))
    before = page.url
    page.click("#examples li:nth-child(3) button")
    expect(page).not_to_have_url(before)
    page.go_back()
    expect(page).to_have_url(before)


def test_back_returns_to_the_model_before(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    wait_until_drawn(page)
    pick_model(page, "colour")
    expect(page).to_have_url(re.compile("model=colour.*seed"))
    page.go_back()
    expect(page).to_have_url(re.compile("model=grey&n=2&seed=5"))
    wait_until_drawn(page)


def test_back_closes_viewer(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    page.click("nav >> text=Draw")
    wait_until_drawn(page)
    page.locator("#draw .image-grid button").first.click()
    expect(page.locator("#viewer")).to_be_visible()
    page.go_back()
    expect(page.locator("#complete")).to_be_visible()
    expect(page.locator("#viewer")).to_be_hidden()


@pytest.mark.parametrize("view", ["draw", "complete", "watch", "inside", "play"])
def test_invalid_values_in_a_link_are_reported(visit: Open, view: str) -> None:
    image = base64.urlsafe_b64encode(encode(random_picture())).decode().rstrip("=")
    rest = f"&image={image}" if view == "complete" else ""
    invalid = {f"seed={seed}": seed for seed in (2**53 - 1, -3, "abc")}
    messages = {
        "label=dragon&seed=3": "This model has no class “dragon”. Choose another one.",
        **{
            field: f"A seed is a whole number from 0 to {2**53 - 64} here, not “{seed}”."
            for field, seed in invalid.items()
        },
    }
    if view == "play":
        del messages["label=dragon&seed=3"]
    page = visit(f"#{view}?model=grey&n=1&{next(iter(messages))}{rest}")
    for fields, message in messages.items():
        link = f"#{view}?model=grey&n=1&{fields}{rest}"
        follow_link(page, link)
        status = page.locator("#play-status" if view == "play" else f"#{view} [role=alert]")
        expect(status).to_have_text(message)
        assert url_hash(page) == link
        expect(page.locator(f"#{view} .image-grid li")).to_have_count(0)
    if view == "play":
        page.click("#play-again")
        expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")
    elif view != "complete":
        follow_link(page, f"#{view}?seed=5&at=3&temperature=cold&top_p=")
        expect(page).to_have_url(re.compile(rf"#{view}\?model=grey&.*temperature=1(&|$)"))
        assert not re.search(r"top_p=(0|&|$)", page.url)
    if view in ("complete", "inside"):
        follow_link(page, f"#{view}?image=%25%25")
        expect(page.locator(f"#{view} [data-status-panel]").first).to_contain_text(
            "The picture in this link is damaged."
        )


def test_link_without_a_seed_or_with_an_unknown_view_draws(visit: Open) -> None:
    page = visit("#draw?n=2&top_p=0.9&temperature=0.5")
    wait_until_drawn(page)
    assert {"top_p=0.9", "temperature=0.5"} <= set(url_hash(page).partition("?")[2].split("&"))
    page = visit("#nosuch")
    wait_until_drawn(page)
    assert url_hash(page).startswith("#draw")


def test_class_in_link(visit: Open) -> None:
    page = visit("#draw?model=grey&n=2&seed=3&label=A FROG")
    wait_until_drawn(page)
    checked = page.locator("#draw-classes input:checked")
    expect(checked).to_have_value("a frog")
    for seed, label, value in (
        (4, "random", "random"),
        (5, "2", "a frog"),
        (6, "random", "random"),
    ):
        follow_link(page, f"#draw?model=grey&n=2&seed={seed}&label={label}")
        expect(page.locator("#draw .image-grid small").first).to_contain_text(f"seed {seed}")
        wait_until_drawn(page)
        expect(checked).to_have_value(value)
        assert f"label={value.replace(' ', '+')}" in url_hash(page)
    expect(page.locator("#draw-classes input[value=random]")).to_have_count(1)
    page.check("#draw-classes [value='a frog']")
    wait_until_drawn(page)
    follow_link(page, "#inside?seed=5&at=3&label=2")
    expect(page.locator("#inside-caption")).to_contain_text("A picture drawn as a frog.")
    expect(page).to_have_url(re.compile(r"label=a\+frog"))


def test_skip_link_keeps_view(visit: Open) -> None:
    page = visit("#complete")
    wait_until_drawn(page, "complete")
    address = url_hash(page)
    page.focus(".skip")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("#complete")).to_be_visible()
    assert url_hash(page) == address


@pytest.mark.parametrize("view", ["draw", "complete"])
def test_copied_commands_repeat_the_drawing(visit: Open, tmp_path: Path, view: str) -> None:
    page = visit("#draw?n=1&seed=5" if view == "draw" else "#complete", permissions=CLIPBOARD)
    wait_until_drawn(page, view)
    if view == "complete":
        set_value(page, "#complete-n", "1")
        set_value(page, "#complete-label", "a frog")
        page.click("#complete-form button[type=submit]")
        expect(page.locator("#complete .image-grid li")).to_have_count(2)
        wait_until_drawn(page, view)
    shown = np.array(pixels(page, f"#{view} .image-grid canvas")[-1]).reshape(GREY.height, -1, 4)
    for kind, shell in (("curl", ["sh"]), ("python", [sys.executable])):
        share(page, f"#{view}", kind)
        expect(page.locator(f"#{view} .share [role=status]")).to_contain_text("copied")
        page.wait_for_function(
            "kind => navigator.clipboard.readText().then(t => t.includes(kind))",
            arg="import" if kind == "python" else "curl",
        )
        saved = tmp_path / "scanline.png"
        saved.unlink(missing_ok=True)
        subprocess.run([*shell, "-c", copied(page)], cwd=tmp_path, check=True, timeout=60)
        with Image.open(saved) as picture:
            assert np.array_equal(np.asarray(picture), shown[..., 0]), kind


def test_link_of_one_image(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5", permissions=CLIPBOARD)
    wait_until_drawn(page)
    third = pixels(page, "#draw .image-grid canvas")[2]
    page.locator("#draw .image-grid button").nth(2).click()
    share(page, "#viewer", "link")
    expect(page.locator("#viewer .share [role=status]")).to_contain_text("Link copied")
    link = copied(page)
    assert "#" not in link, "a server does not receive the hash"
    again = visit("?" + link.partition("?")[2])
    wait_until_drawn(again)
    assert pixels(again, "#draw .image-grid canvas") == [third]


def test_copy_dialog_without_clipboard(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        script="Object.defineProperty(navigator, 'clipboard', {value: undefined})",
    )
    wait_until_drawn(page)
    share(page, "#draw", "link")
    expect(page.locator("#copy-text")).to_have_value(page.url.replace("#draw", ""))


def test_share_dialog_on_phones(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        has_touch=True,
        is_mobile=True,
        script="navigator.share = async (what) => { window.shared = what; };",
    )
    wait_until_drawn(page)
    expect(page.locator("#draw [data-copy=link]")).to_have_text("Share the link …")
    share(page, "#draw", "link")
    assert page.evaluate("() => window.shared.url") == page.url.replace("#draw", "")


def test_model_switch_before_first_view(visit: Open) -> None:
    held: list[Any] = []
    page = visit()
    wait_until_drawn(page)
    page.route("**/static/draw.js", lambda route: held.append(route))
    with page.expect_request("**/static/draw.js"):
        page.reload()
    expect(page.locator("#model-field")).to_be_visible()
    pick_model(page, "colour")
    held[0].continue_()
    wait_until_drawn(page)
    assert "model=colour" in url_hash(page)


def test_link_opened_during_navigation_is_not_lost(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5")
    wait_until_drawn(page)
    # The address changes again while the first link opens; its hashchange event comes later.
    page.evaluate("""() => {
        history.replaceState(null, "", "#draw?n=1&seed=77");
        dispatchEvent(new HashChangeEvent("hashchange"));
        location.hash = "#draw?n=1&seed=6";
    }""")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 6")
    wait_until_drawn(page)
    assert "seed=6" in page.url


def test_share_menu_closes_with_its_view(visit: Open) -> None:
    page = visit("#learn")
    page.click("nav >> text=Draw")
    wait_until_drawn(page)
    page.click("#draw [data-share-open]")
    page.go_back()
    expect(page.locator("#learn")).to_be_visible()
    page.go_forward()
    expect(page.locator("#draw")).to_be_visible()
    expect(page.locator("#draw [data-copy=link]")).to_be_hidden()


def test_share_saves_all_images_as_one(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5")
    wait_until_drawn(page)
    drawn = np.array(pixels(page, "#draw .image-grid canvas")).reshape(3, GREY.height, -1, 4)
    for kind in ("gif", "png"):
        with page.expect_download() as saved:
            share(page, "#draw", kind)
        status = page.locator("#draw .share:not(.grid-toolbar) [role=status]")
        expect(status).to_contain_text("saved")
        with Image.open(saved.value.path()) as picture:
            scale = picture.width // (2 * GREY.width + 2)
            if kind == "gif":
                assert getattr(picture, "n_frames", 1) == GREY.pixels + 1
                picture.seek(GREY.pixels)
            seen = np.asarray(picture.convert("RGB"))[::scale, ::scale]
        for k in range(3):
            top, left = k // 2 * (GREY.height + 2), k % 2 * (GREY.width + 2)
            tile = seen[top : top + GREY.height, left : left + GREY.width]
            assert np.array_equal(tile, drawn[k, ..., :3]), kind


def test_shared_completions_open_from_the_query(visit: Open) -> None:
    page = visit("#complete", permissions=CLIPBOARD)
    wait_until_drawn(page, "complete")
    shown = pixels(page, "#complete .image-grid canvas")
    share(page, "#complete", "link")
    expect(page.locator("#complete .share:not(.grid-toolbar) [role=status]")).to_contain_text(
        "copied"
    )
    link = copied(page)
    assert "#" not in link
    again = visit("?" + link.partition("?")[2])
    wait_until_drawn(again, "complete")
    assert pixels(again, "#complete .image-grid canvas") == shown
