"""Forms that pages of other sites submit."""

from __future__ import annotations

import pytest

from tests.service.api.fixtures import LiveServer, serve
from tests.service.fixtures import GREY, check_error, encode, random_picture

PICTURE = {"image": ("a.png", encode(random_picture(GREY)))}


def send_form(api: LiveServer, path: str, site: str, **headers: str) -> int:
    """Send a form as a browser does, and return the status of the reply."""
    sent = {"Sec-Fetch-Site": site, **headers}
    mask = {"mask": ("b.png", encode(random_picture(GREY).convert("LA")))}
    extra = mask if path.endswith("edits") else {}
    data = {"known_rows": "1"} if path.endswith("completions") else {"model": "grey"}
    reply = api.client.post(path, data=data, files=PICTURE | extra, headers=sent)
    if reply.status_code == 403:
        assert "SCANLINE_CORS_ORIGINS" in check_error(reply, 403, "cors_refused")
    return reply.status_code


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/score", "/v1/images/edits"])
def test_cross_site_forms_are_refused(api: LiveServer, path: str) -> None:
    """Browsers send them without a preflight, so any page could use a local server."""
    for site in ("cross-site", "same-site"):  # same-site includes other ports of this machine
        assert send_form(api, path, site, Origin="https://a.example") == 403
        assert send_form(api, path, site, Origin="null") == 403
        plain = {"Sec-Fetch-Site": site, "Content-Type": "text/plain"}
        check_error(api.client.post(path, content=b"{}", headers=plain), 403, "cors_refused")
    for site in ("same-origin", "none"):  # a proxy may have changed Host
        assert send_form(api, path, site, Origin="https://a.example") != 403
    assert api.client.get("/v1/models", headers={"Sec-Fetch-Site": "cross-site"}).is_success


def test_cross_site_forms_of_configured_origins_are_accepted() -> None:
    with serve({"cors_origins": "https://a.example"}) as api:
        form = "/v1/completions"
        assert send_form(api, form, "cross-site", Origin="https://a.example") == 200
        assert send_form(api, form, "cross-site", Origin="https://b.example") == 403
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert api.client.post("/v1/samples", json={}, headers=foreign).is_success
    with serve({"cors_origins": "*"}) as api:
        assert send_form(api, form, "cross-site", Origin="https://b.example") == 200
    with serve({"api_key": "secret"}) as api:  # browsers do not add the key by themselves
        key = "Bearer secret"
        origin = "https://a.example"
        assert send_form(api, form, "cross-site", Origin=origin, Authorization=key) == 200
