"""uvicorn's request and response, where it frames a reply wrongly, or hangs up too soon."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ResponseCycle(RequestResponseCycle):
    """One request and its response.

    HTTP/1.0 knows no chunks: what has no length ends where the connection does. Whoever still sends
    as they are answered is heard out, for to close with bytes unread is a reset, which takes the
    reply from them: such a cycle ``lingers`` until its request is in.
    """

    unframed = lingers = False

    async def send(self, message: Any) -> None:
        """Send a part of the reply."""
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
        if self.lingers and not self.more_body:  # it came in while the reply was still going out
            self.transport.close()
