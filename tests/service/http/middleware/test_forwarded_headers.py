"""Tests of ``X-Forwarded-Proto`` from trusted and other proxies."""

from __future__ import annotations

import httpx
import pytest

from tests.service.fixtures import build, talking_to


def scheme_of_links(client: httpx.Client, *values: str) -> str:
    """Return the scheme of the links that a page contains."""
    page = client.get("/?seed=1", headers=[("X-Forwarded-Proto", value) for value in values])
    address = page.text.split('og:image" content="')[1]
    return address.partition("://")[0]


@pytest.mark.parametrize("trusted", ["127.0.0.1", "*"])
def test_the_scheme_is_the_first_proxys(trusted: str) -> None:
    _, app = build({"trusted_proxies": trusted})
    with talking_to(app) as client:
        for values, scheme in (
            (["https"], "https"),
            (["HTTPS"], "https"),
            (["https, http"], "https"),
            (["Https,http,http"], "https"),
            (["https", "http"], "https"),  # each proxy may also add a header of its own
            (["http, https"], "http"),
            (["gopher"], "http"),
            ([""], "http"),
            ([], "http"),
        ):
            assert scheme_of_links(client, *values) == scheme, values


@pytest.mark.parametrize("trusted", ["", "192.0.2.1"])
def test_the_scheme_of_other_clients_is_not_trusted(trusted: str) -> None:
    _, app = build({"trusted_proxies": trusted})
    with talking_to(app) as client:
        assert scheme_of_links(client, "https") == "http"
