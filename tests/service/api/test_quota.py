"""Tests of the quota over HTTP: its error, callers, retries and metrics."""

from __future__ import annotations

import re

from tests.fake_clock import Clock
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, check_error, talking_to, until

T = GREY.pixels


def test_a_caller_over_its_quota_is_refused_until_it_is_paid_off() -> None:
    fields = {"api_key": "one,two", "pixels_per_minute": 2 * T}
    clock = Clock()
    _, app = build(fields, {"grey": FakeDecoder(GREY, 4)}, clock)
    with talking_to(app) as client:

        def draw(key: str = "one", **headers: str) -> int:
            headers["Authorization"] = f"Bearer {key}"
            reply = client.post("/v1/samples", json={"n": 3, "seed": 1}, headers=headers)
            if reply.status_code == 200:
                return 0
            message = check_error(reply, 429, "quota_exceeded")
            assert "60 pixels per minute" in message
            return int(reply.headers["retry-after"])

        named = {"Idempotency-Key": "k"}
        assert draw(**named) == 0  # larger than the quota
        assert draw() == T + 1
        assert draw(**named) == 0  # a repeated reply draws nothing
        assert draw("two") == 0  # a quota of its own
        clock.now += T + 1
        assert draw() == 0
        # OpenAI's routes and the addresses of samples have the same quota.
        key = {"Authorization": "Bearer one"}
        openai = client.post("/v1/images/generations", json={"prompt": ""}, headers=key)
        check_error(openai, 429, "quota_exceeded")
        # Refused before the upload is decoded.
        broken = {"image": ("x.png", b"no picture", "image/png")}
        upload = client.post("/v1/completions", files=broken, headers=key)
        check_error(upload, 429, "quota_exceeded")
        sample = client.get("/v1/samples/grey/7.png", headers=key)
        check_error(sample, 429, "quota_exceeded")
        # Scores and reading cost nothing.
        assert client.get("/v1/models", headers=key).status_code == 200

        def used() -> dict[str, float]:
            found = re.findall(
                r'scanline_quota_pixels_total\{key="(.*?)"\} (\S+)', client.get("/metrics").text
            )
            return {name: float(pixels) for name, pixels in found}

        until(lambda: sorted(used().values()) == [3 * T, 6 * T], "the counted pixels")
        assert all(re.fullmatch("key_[0-9a-f]{8}", name) for name in used())
        refused = 'scanline_refused_total{reason="quota_exceeded"} 4.0'
        assert refused in client.get("/metrics").text


def test_without_keys_addresses_have_quotas_and_one_metric() -> None:
    fields = {"pixels_per_minute": T, "trusted_proxies": "127.0.0.1"}
    _, app = build(fields, {"grey": FakeDecoder(GREY, 4)})
    with talking_to(app) as client:
        for address, status in (
            ("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.2.2", 200),
            ("2001:db8::1", 200), ("2001:db8::2", 429), ("2001:db8:0:1::1", 200),  # networks of /64
        ):  # fmt: skip
            headers = {"X-Forwarded-For": address}
            reply = client.post("/v1/samples", json={"n": 4}, headers=headers)
            assert reply.status_code == status
        metric = f'scanline_quota_pixels_total{{key=""}} {16 * T:.1f}'
        until(lambda: metric in client.get("/metrics").text, metric)
