"""Links and history: what is shown can be left, come back to and handed on."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from tests.page.helpers import Open, expect, finished, hash_of, measured, pixels
from tests.service.fixtures import GREY, encode, random_picture

if TYPE_CHECKING:
    from playwright.sync_api import Page, Request

CLIPBOARD = ["clipboard-read", "clipboard-write"]


def copied(page: Page) -> str:
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def drawings(page: Page) -> list[str]:
    """Note, from now on, every request for what seed 5 draws; other views may draw their own."""
    seen: list[str] = []

    def note(request: Request) -> None:
        if request.method == "POST" and '"seed":5' in (request.post_data or ""):
            seen.append(request.url)

    page.on("request", note)
    return seen


def test_views_keep_what_they_show(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&model=grey")
    finished(page)
    shown, address = pixels(page, "#draw .image-grid canvas"), hash_of(page)
    page.click("nav >> text=Learn")
    expect(page.locator("#learn")).to_be_visible()
    expect(page.locator("#scene-bits [data-status]")).to_contain_text("bits")
    expect(page.locator("#scene-dice button").first).to_be_enabled()
    asked = drawings(page)
    page.click("nav >> text=Draw")
    assert hash_of(page) == address
    assert pixels(page, "#draw .image-grid canvas") == shown
    assert asked == []
    page.reload()
    finished(page)
    assert len(asked) == 1


def test_the_model_is_kept_from_view_to_view(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5&model=colour")
    finished(page)
    page.click("nav >> text=Learn")
    assert "model=colour" in hash_of(page)
    page.reload()
    expect(page.locator("#learn-model")).to_have_text("colour")


def test_back_returns_from_looking_inside(visit: Open) -> None:
    page = visit("#draw?n=2&seed=5")
    finished(page)
    shown = pixels(page, "#draw .image-grid canvas")
    page.locator("#draw .image-grid button").first.click()
    page.click("#viewer-inside")
    measured(page)
    inside = hash_of(page)
    assert inside.startswith("#inside?")
    asked = drawings(page)
    page.go_back()
    expect(page.locator("#draw")).to_be_visible()
    assert pixels(page, "#draw .image-grid canvas") == shown
    assert asked == []
    page.go_forward()
    expect(page.locator("#inside")).to_be_visible()
    assert hash_of(page) == inside


def test_back_closes_what_was_enlarged(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    page.click("nav >> text=Draw")
    finished(page)
    page.locator("#draw .image-grid button").first.click()
    expect(page.locator("#viewer")).to_be_visible()
    page.go_back()
    expect(page.locator("#complete")).to_be_visible()
    expect(page.locator("#viewer")).to_be_hidden()


@pytest.mark.parametrize("view", ["draw", "complete"])
def test_a_class_that_the_model_has_not_is_told(visit: Open, view: str) -> None:
    image = base64.urlsafe_b64encode(encode(random_picture())).decode().rstrip("=")
    asked = f"#{view}?model=grey&n=1&seed=3&label=dragon"
    link = asked if view == "draw" else f"{asked}&image={image}"
    page = visit(link)
    alert = page.locator(f"#{view} [role=alert]")
    expect(alert).to_have_text("This model has no class “dragon”.")
    assert hash_of(page) == link
    expect(page.locator(f"#{view} .image-grid li")).to_have_count(0)


@pytest.mark.parametrize(
    ("view", "seed"),
    [
        pytest.param(
            view, seed, marks=() if view == "draw" or seed == "abc" else pytest.mark.broad
        )
        for view in ("draw", "complete", "inside", "play")
        for seed in (2**53 - 1, -3, "abc")
    ],
)  # fmt: skip
def test_a_seed_that_the_page_cannot_draw_is_told(visit: Open, view: str, seed: object) -> None:
    image = base64.urlsafe_b64encode(encode(random_picture())).decode().rstrip("=")
    asked = f"#{view}?model=grey&n=1&seed={seed}"
    page = visit(f"{asked}&image={image}" if view == "complete" else asked)
    said = "#play-status" if view == "play" else "[role=alert]"
    expect(page.locator(f"#{view} {said}")).to_have_text(
        f"A seed is a whole number from 0 to {2**53 - 64} here, not “{seed}”."
    )
    expect(page.locator(f"#{view} .image-grid li")).to_have_count(0)
    if view == "play":
        page.click("#play-again")
        expect(page.locator("#play-status")).to_contain_text("Picture 1 of 5")


def test_a_link_of_dials_alone_turns_them(visit: Open) -> None:
    page = visit("#draw?n=2&top_p=0.9&temperature=0.5")
    finished(page)
    assert {"top_p=0.9", "temperature=0.5"} <= set(hash_of(page).partition("?")[2].split("&"))


@pytest.mark.parametrize("view", ["complete", "inside"])
def test_a_links_damaged_picture_is_told_in_plain_words(visit: Open, view: str) -> None:
    page = visit(f"#{view}?image=%25%25")
    expect(page.locator(f"#{view} [data-report]").first).to_contain_text("It is not a picture.")


@pytest.mark.parametrize("label", ["A FROG", "2"])
def test_a_links_class_may_be_in_other_letters_or_a_number(visit: Open, label: str) -> None:
    page = visit(f"#draw?model=grey&n=1&seed=3&label={label}")
    finished(page)
    expect(page.locator("#draw-classes input:checked")).to_have_value("a frog")


def test_any_class_may_be_asked_for_by_a_link(visit: Open) -> None:
    page = visit("#draw?model=grey&n=2&seed=3&label=random")
    finished(page)
    expect(page.locator("#draw-classes input:checked")).to_have_value("random")
    assert "label=random" in hash_of(page)
    page.check("#draw-classes [value='a frog']")
    finished(page)
    page.goto(page.url.split("#")[0] + "#draw?model=grey&n=1&seed=4&label=random")
    expect(page.locator("#draw .image-grid small").first).to_contain_text("seed 4")
    expect(page.locator("#draw-classes input[value=random]")).to_have_count(1)


def test_an_address_of_no_view_draws(visit: Open) -> None:
    page = visit("#nosuch")
    finished(page)
    assert hash_of(page).startswith("#draw")


def test_the_skip_link_keeps_the_view(visit: Open) -> None:
    page = visit("#complete")
    finished(page, "complete")
    address = hash_of(page)
    page.focus(".skip")
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("#complete")).to_be_visible()
    assert hash_of(page) == address


@pytest.mark.parametrize("view", ["draw", "complete"])
@pytest.mark.parametrize("kind", ["curl", "python"])
def test_a_drawing_can_be_copied_as_a_command(
    visit: Open, tmp_path: Path, view: str, kind: str
) -> None:
    page = visit("#draw?n=1&seed=5" if view == "draw" else "#complete", permissions=CLIPBOARD)
    finished(page, view)
    if view == "complete":
        page.click("#complete-form summary")
        page.fill("#complete-n", "1")
        page.select_option("#complete-label", "a frog")
        page.click("#complete-form button[type=submit]")
        expect(page.locator("#complete .image-grid li")).to_have_count(2)
        finished(page, view)
    page.click(f"#{view} [data-copy={kind}]")
    expect(page.locator(f"#{view} .share [role=status]")).to_contain_text("copied")
    text = copied(page)
    command: list[Any] = ["sh", "-c", text] if kind == "curl" else [sys.executable, "-c", text]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    shown = np.array(pixels(page, f"#{view} .image-grid canvas")[-1]).reshape(GREY.height, -1, 4)
    with Image.open(tmp_path / "scanline.png") as saved:
        assert np.array_equal(np.asarray(saved), shown[..., 0])


def test_one_images_link_draws_it_alone(visit: Open) -> None:
    page = visit("#draw?n=3&seed=5", permissions=CLIPBOARD)
    finished(page)
    third = pixels(page, "#draw .image-grid canvas")[2]
    page.locator("#draw .image-grid button").nth(2).click()
    page.click("#viewer [data-copy=link]")
    expect(page.locator("#viewer .share [role=status]")).to_contain_text("Link copied")
    link = copied(page)
    assert "#" not in link, "a server sees no further than that"
    again = visit("?" + link.partition("?")[2])
    finished(again)
    assert pixels(again, "#draw .image-grid canvas") == [third]


def test_what_cannot_be_copied_is_shown(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        script="Object.defineProperty(navigator, 'clipboard', {value: undefined})",
    )
    finished(page)
    page.click("#draw [data-copy=link]")
    expect(page.locator("#copy-text")).to_have_value(page.url.replace("#draw", ""))


def test_phones_share_as_their_system_does(visit: Open) -> None:
    page = visit(
        "#draw?n=1&seed=5",
        has_touch=True,
        is_mobile=True,
        script="navigator.share = async (what) => { window.shared = what; };",
    )
    finished(page)
    expect(page.locator("#draw [data-copy=link]")).to_have_text("Share …")
    page.click("#draw [data-copy=link]")
    assert page.evaluate("() => window.shared.url") == page.url.replace("#draw", "")


def test_another_model_may_be_chosen_before_anything_is_shown(visit: Open) -> None:
    held: list[Any] = []
    page = visit()
    finished(page)
    page.route("**/static/draw.js", lambda route: held.append(route))
    with page.expect_request("**/static/draw.js"):
        page.reload()
    expect(page.locator("#model-field")).to_be_visible()
    page.select_option("#model", "colour")
    held[0].continue_()
    finished(page)
    assert "model=colour" in hash_of(page)
