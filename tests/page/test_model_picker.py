"""Tests of the model picker: its titles and thumbnails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.page.helpers import Open, box, change_models, expect, wait_until_drawn

if TYPE_CHECKING:
    from playwright.sync_api import Route


def test_classes_choose_the_title(visit: Open) -> None:
    page = visit("#draw?n=1&seed=5", allowed=["400", "404"])
    wait_until_drawn(page)

    def change(reply: dict[str, Any]) -> None:
        reply["data"][0]["classes"] = [str(digit) for digit in range(10)]
        reply["data"][1]["id"] = "mnist-fashion"

    change_models(page, change)
    wait_until_drawn(page)
    expect(page.locator("#model-field label")).to_have_text(["Digits", "mnist-fashion"])
    for picture in page.locator("#model-field img").all():
        expect(picture).to_be_hidden()  # neither model can draw its thumbnail


def test_thumbnails_do_not_move_the_header(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    page.route("**/v1/samples/*/*.png*", hold_first)
    with page.expect_request("**/v1/samples/*/*.png*"):
        page.reload()
    wait_until_drawn(page)
    before = [box(page, "#model-field"), box(page, "#draw-form")]
    held[0].continue_()
    pictures = page.locator("#model-field img[src^=blob]")
    expect(pictures).to_have_count(2)
    page.wait_for_function(
        "() => [...document.querySelectorAll('#model-field img')].every((i) => i.naturalWidth > 1)"
    )
    assert [box(page, "#model-field"), box(page, "#draw-form")] == before
