"""Tests of drawing again when the model changes: following a run that is being trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scanline.model.checkpoint import save_checkpoint
from tests.page.helpers import Open, expect, open_settings, pixels, wait_until_drawn
from tests.service.fixtures import reloading_server
from tests.service.state.fixtures import network


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "it.safetensors", network(1), {})
    return tmp_path


def test_same_seeds_are_drawn_with_each_new_checkpoint(visit: Open, run_folder: Path) -> None:
    with reloading_server(run_folder) as (_, reloader, client):
        url = str(client.base_url)
        page = visit("#draw?seed=5&n=2", url=url)
        wait_until_drawn(page)
        old = pixels(page, "#draw .image-grid canvas")
        address = page.url
        open_settings(page)
        page.check("[name=follow]")
        facts = page.request.get(f"{url}/v1/models/it").json()
        save_checkpoint(run_folder / "it.safetensors", network(2), {})
        assert reloader.reload().replaced == ["it"]
        with page.expect_response("**/v1/samples") as drawn:
            pass
        body: Any = drawn.value.request.post_data_json
        assert (body["seed"], body["n"]) == (5, 2)
        wait_until_drawn(page)
        assert pixels(page, "#draw .image-grid canvas") != old
        assert page.url == address
        assert page.request.get(f"{url}/v1/models/it").json()["weights"] != facts["weights"]
        page.context.close()  # it would go on asking the stopped server


RESTORE = """document.addEventListener("DOMContentLoaded", () => {
    document.querySelector("[name=follow]").checked = true;
});"""


def test_choice_restored_by_the_browser_is_applied(visit: Open, run_folder: Path) -> None:
    """Firefox restores it when the page is reloaded, without an event."""
    with reloading_server(run_folder) as (_, _, client):
        page = visit("#draw?seed=5&n=2", url=str(client.base_url), script=RESTORE)
        with page.expect_request("**/v1/models/it"):
            pass
        page.context.close()  # it would go on asking the stopped server


def test_choice_is_hidden_if_models_do_not_change(visit: Open) -> None:
    page = visit()
    wait_until_drawn(page)
    open_settings(page)
    expect(page.locator("[name=n]").first).to_be_visible()
    expect(page.locator("[name=follow]")).to_be_hidden()
