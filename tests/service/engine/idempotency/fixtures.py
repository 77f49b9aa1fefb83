"""Helpers of the idempotency tests."""

from __future__ import annotations

from typing import Any

import httpx

from tests.service.fixtures import until

ASYNC = {"Prefer": "respond-async"}


def drawn(client: httpx.Client, where: str) -> dict[str, Any]:
    until(lambda: client.get(where).json()["status"] == "finished", "the end")
    reply: dict[str, Any] = client.get(where).json()
    return reply
