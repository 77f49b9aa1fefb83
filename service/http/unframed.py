"""Replies to HTTP/1.0, which knows no chunks: what has no length ends where the connection does."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class UnframedCycle(RequestResponseCycle):
    """uvicorn's request and response, but without chunks, which it sends to HTTP/1.0 too."""

    async def send(self, message: Any) -> None:
        """Send a part of the reply."""
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", [])]
            self.unframed = b"content-length" not in names
            if self.unframed:
                self.chunked_encoding = False
        elif self.unframed:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
