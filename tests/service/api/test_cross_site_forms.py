"""What other sites' pages may have a browser send."""

from __future__ import annotations

import pytest

from tests.service.api.fixtures import LiveServer, serve
from tests.service.fixtures import GREY, check_error, encode, random_picture

PICTURE = {"image": ("a.png", encode(random_picture(GREY)))}


def send_form(api: LiveServer, path: str, site: str, **headers: str) -> int:
    """Send a form as a browser does, and give the status of the reply."""
    sent = {"Sec-Fetch-Site": site, **headers}
    mask = {"mask": ("b.png", encode(random_picture(GREY).convert("LA")))}
    extra = mask if path.endswith("edits") else {}
    data = {"known_rows": "1"} if path.endswith("completions") else {"model": "grey"}
    reply = api.client.post(path, data=data, files=PICTURE | extra, headers=sent)
    if reply.status_code == 403:
        assert "SCANLINE_CORS_ORIGINS" in check_error(reply, 403, "cors_refused")
    return reply.status_code


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/score", "/v1/images/edits"])
def test_a_form_of_another_sites_page_is_refused(api: LiveServer, path: str) -> None:
    """Which a browser sends without asking: any page could have a server beside it draw."""
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        assert send_form(api, path, site, Origin="https://a.example") == 403
        assert send_form(api, path, site, Origin="null") == 403
        plain = {"Sec-Fetch-Site": site, "Content-Type": "text/plain"}
        check_error(api.client.post(path, content=b"{}", headers=plain), 403, "cors_refused")
    for site in ("same-origin", "none"):  # whatever a proxy made of Host
        assert send_form(api, path, site, Origin="https://a.example") != 403
    assert api.client.get("/v1/models", headers={"Sec-Fetch-Site": "cross-site"}).is_success


def test_forms_of_the_pages_named_are_read_and_json_is_asked_about_before() -> None:
    for api in serve({"cors_origins": "https://a.example"}):
        form = "/v1/completions"
        assert send_form(api, form, "cross-site", Origin="https://a.example") == 200
        assert send_form(api, form, "cross-site", Origin="https://b.example") == 403
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert api.client.post("/v1/samples", json={}, headers=foreign).is_success
    for api in serve({"cors_origins": "*"}):
        assert send_form(api, form, "cross-site", Origin="https://b.example") == 200
    for api in serve({"api_key": "secret"}):  # no browser sends it by itself
        key = "Bearer secret"
        origin = "https://a.example"
        assert send_form(api, form, "cross-site", Origin=origin, Authorization=key) == 200
