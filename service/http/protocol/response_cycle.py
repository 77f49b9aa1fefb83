"""Fixes for how uvicorn frames a reply and closes its connection."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ResponseCycle(RequestResponseCycle):
    """One request and its response.

    Adds two things to uvicorn's class:

    - HTTP/1.0 has no chunked encoding, so a reply without a length ends where its connection does.
    - A connection that is closed while the client still sends is reset, and the client loses the
      reply. So a cycle whose request is incomplete ``lingers``: the connection is closed only once
      the whole request has been received.
    """

    unframed = lingers = False

    async def send(self, message: Any) -> None:
        """Send one ASGI message of the reply."""
        if message["type"] == "http.response.start":
            if self.scope["http_version"] == "1.0":
                names = [name.lower() for name, _ in message.get("headers", [])]
                self.unframed = b"content-length" not in names
                if self.unframed:
                    self.chunked_encoding = False
        else:
            if self.unframed:
                self.expected_content_length = len(message.get("body", b""))
            if not message.get("more_body") and self.more_body and not self.keep_alive:
                self.lingers = self.keep_alive = True
        await super().send(message)
        if self.lingers and not self.more_body:  # the request ended while the reply was sent
            self.transport.close()
