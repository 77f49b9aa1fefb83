"""Tests of the preview image of a shared link."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, check_error, decode_png, talking_to


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    _, app = build(decoders={"grey": FakeDecoder(GREY, 8)})
    with talking_to(app) as here:
        yield here


def preview_of(client: httpx.Client, query: str) -> str | None:
    page = client.get(f"/?{query}").raise_for_status()
    found = re.search('property="og:image" content="([^"]*)"', page.text)
    return html.unescape(found[1]) if found else None


@pytest.mark.parametrize("n", [1, 9])
def test_a_shared_link_names_its_preview(client: httpx.Client, n: int) -> None:
    address = preview_of(client, f"model=grey&n={n}&seed=5&label=one&temperature=0.5&by=label")
    assert address is not None
    assert address.startswith(f"{client.base_url}/card.png?".replace("//card", "/card"))
    reply = client.get(address).raise_for_status()
    assert reply.headers["content-type"] == "image/png"
    assert "max-age" in reply.headers["cache-control"]
    sent = client.post(
        "/v1/samples",
        json={"n": 1, "seed": 5, "label": "one", "temperature": 0.5},
        headers={"Accept": "image/png"},
    )
    drawn = decode_png(sent.content, GREY).reshape(GREY.height, GREY.width)
    with Image.open(io.BytesIO(reply.content)) as card:
        assert 400 <= card.width <= 800
        scale = 600 // (GREY.width * (1 if n == 1 else 2))
        first = np.asarray(card.convert("L"))[::scale, ::scale][: GREY.height, : GREY.width]
    assert np.array_equal(first, drawn)


def test_a_repeated_preview_is_not_drawn_again() -> None:
    decoder, steps = FakeDecoder(GREY, 8), list[int]()
    decoder.before_step = lambda slots: steps.append(len(slots))
    _, app = build({"max_images": 2, "max_waiting": 2}, {"grey": decoder})
    with talking_to(app) as here:
        first = here.get("/card.png?seed=5&n=9&label=").raise_for_status()
        drawn = len(steps)
        again = here.get("/card.png?seed=5&n=9").raise_for_status()
        assert (again.content, len(steps)) == (first.content, drawn)
        tag = first.headers["etag"]
        known = here.get("/card.png?seed=5&n=9", headers={"If-None-Match": tag})
        assert (known.status_code, known.headers["etag"]) == (304, tag)
        assert here.get("/card.png?seed=6&n=9").headers["etag"] != tag


def test_link_without_a_valid_seed_has_the_landing_preview(
    client: httpx.Client,
) -> None:
    landing = preview_of(client, "")
    assert landing is not None
    assert client.get(landing).raise_for_status().headers["content-type"] == "image/png"
    assert preview_of(client, "n=3") == landing
    for seed in (2**53, "-1", "x", "9" * 5000, "٣"):  # the page cannot represent them
        assert preview_of(client, f"seed={seed}") == landing
    assert preview_of(client, f"seed={2**53 - 1}") != landing


def shown(reply: httpx.Response) -> np.ndarray:
    """Return the first image of a card of four, at the model's size."""
    scale = 600 // (GREY.width * 2)
    with Image.open(io.BytesIO(reply.raise_for_status().content)) as card:
        return np.asarray(card.convert("L"))[::scale, ::scale][: GREY.height, : GREY.width]


def test_preview_of_a_game_shows_upper_halves(client: httpx.Client) -> None:
    address = preview_of(client, "view=play&seed=5")
    assert address is not None
    first = shown(client.get(address))
    body = {"n": 4, "seed": 5, "label": "random", "output": "values"}
    values = client.post("/v1/samples", json=body).json()["images"][0]["values"]
    half = GREY.height // 2
    assert first[:half].ravel().tolist() == values[: half * GREY.width]
    assert (first[half:] == 48).all()
    assert "Guess it from the upper half" in client.get("/?view=play&seed=5").text


def test_preview_of_completions_keeps_known_pixels(client: httpx.Client) -> None:
    picture = np.zeros((GREY.height, GREY.width, 2), np.uint8)
    picture[:2] = (77, 255)
    buffer = io.BytesIO()
    Image.fromarray(picture, "LA").save(buffer, "PNG")
    text = base64.urlsafe_b64encode(buffer.getvalue()).decode().rstrip("=")
    address = preview_of(client, f"view=complete&seed=5&n=8&image={text}")
    assert address is not None
    first = shown(client.get(address))
    assert (first[:2] == 77).all()
    assert len(np.unique(first[2:])) > 1
    for damaged in ("%25", "AAAA", text[:40]):
        check_error(client.get(f"/card.png?view=complete&seed=5&image={damaged}"), 400)


def test_links_are_escaped_in_html(client: httpx.Client) -> None:
    page = client.get("/", params={"seed": '"><script>', "x": '"><b>'}).text
    assert '"><script>' not in page
    assert '"><b>' not in page


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("seed=-1", 400), ("seed=x", 400), ("seed=1&model=none", 404),
     ("seed=1&label=nothing", 400), ("seed=1&top_p=7", 400), ("seed=1&temperature=nan", 400)],
)  # fmt: skip
def test_invalid_previews_are_refused(client: httpx.Client, query: str, status: int) -> None:
    reply = client.get(f"/card.png?{query}")
    check_error(reply, status)


def test_a_server_with_an_api_key_has_no_previews() -> None:
    _, app = build({"api_key": "open sesame"}, {"grey": FakeDecoder(GREY, 8)})
    with talking_to(app) as here:
        assert preview_of(here, "seed=5") is None
        check_error(here.get("/card.png?seed=5"), 404)
