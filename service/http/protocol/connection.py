"""Clients' connections: what may come before a body is bounded, and so is every wait for them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import select
from collections import deque
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from scanline.service.http.addresses import client_address, client_network
from scanline.service.http.errors import ApiError
from scanline.service.http.middleware.security_headers import SECURITY_HEADERS
from scanline.service.http.protocol.connection_limiter import ConnectionLimiter
from scanline.service.http.protocol.response_cycle import ResponseCycle

log = logging.getLogger("scanline.connections")

MAX_URL = 8192  # bytes
MAX_HEADERS = 100
MAX_PIPELINED = 16  # requests sent before the first of them is answered
PEER_CHECK_SECONDS = 1.0  # between two looks at whether one who is not read has gone
LINGER_SECONDS = 2.0  # a refused client is heard out, so that it reads why it was refused
MIN_READ_BYTES = 16_384  # a client must take so much of a reply, or all of it, each `send_seconds`


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's connection, with bounds.

    A head, a URL, trailers, or what lies between two pieces of a body may have so many bytes; a
    head, a body and the client's reading of a reply may take so long. Refusals are JSON. Where
    there is one connection too many, another makes room, or it is refused
    (`ConnectionLimiter.enter`).
    """

    cycle: ResponseCycle  # of the last request

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limiter: ConnectionLimiter,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limiter, self._bounds = limiter, limiter.bounds
        self._room = self._bounds.header_bytes  # bytes until the parser must have got somewhere
        self._whole = True  # no message is half read
        self._in_head = True
        self._parted = False  # the parser takes a request's body for another protocol's
        self._cycles: deque[ResponseCycle] = deque()  # unanswered, the one under way first
        self._ended = False  # whatever else comes is not for us
        self._refusal: tuple[int, str, str] | None = None
        self._reading: asyncio.TimerHandle | None = None  # when the client must have sent
        self._writing: asyncio.TimerHandle | None = None  # when it must have read
        self._looking: asyncio.TimerHandle | None = None  # when to see whether it is there

    # --- coming and going ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a client, if need be in the place of another."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing is paused while anything is unsent
        whose = client_network(client_address(self.client[0] if self.client else ""))
        if not self._limiter.admit(self, whose, len(self.connections)):
            self._refuse(503, "the server has all the connections it can take", "full")
            if not self._limiter.allow_lingering(self):
                transport.close()
            return
        self._expect(self._bounds.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._limiter.release(self)
        self._expect(None)
        self._sent()
        if self._looking is not None:
            self._looking.cancel()
        self._leave()
        super().connection_lost(exc)

    # --- from the client ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Parse what came, in pieces no larger than the parser may still take."""
        if self._ended:
            return
        if self._whole and not self._busy and data.startswith(b"POST ") and self._left():
            # It asked and went: nothing is drawn for nobody, and no flood of such costs others.
            self._ended = True
            self._limiter.count_closed("left")
            self.transport.abort()
            return
        if self._reading is None and self._whole and not self._busy:
            self._expect(self._bounds.header_seconds)
        self._unset_keepalive_if_required()
        at = 0
        while at < len(data) and not self._ended and not self.transport.is_closing():
            piece = data[at : at + self._room]
            at += len(piece)
            self._room -= len(piece)  # which whatever the parser makes of it sets back
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # It was answered as if nothing but HTTP/1.1 had been offered: go on behind it.
                at += upgrade.args[0] - len(piece)
                self._rejoin()
            except httptools.HttpParserError:
                refusal = (400, "this is not HTTP/1.1 as RFC 9112 has it", "malformed")
                self._refuse(*(self._refusal or refusal))
                return
            if self._room <= 0:
                most = f"over {self._bounds.header_bytes:,} bytes"
                self._refuse(431, f"the headers are {most}; send fewer", "too_large")

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._parted:
            return
        super().on_message_begin()
        self._whole, self._in_head = False, True

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        if not self._in_head:
            return
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._refusal = (414, f"the URL is over {MAX_URL:,} bytes; make it shorter", "too_long")
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is left out, or it could pass for one."""
        if not self._in_head:
            return
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            message = f"there are over {MAX_HEADERS} headers; send fewer"
            self._refusal = (431, message, "too_many")
            raise ValueError

    def on_headers_complete(self) -> None:
        """Start on a request, or queue it."""
        if not self._in_head:
            return
        self._in_head = False
        self._room = self._bounds.header_bytes
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError
        self._check_head()
        self._parted = self.parser.should_upgrade() and self._has_body
        super().on_headers_complete()
        self.cycle.__class__ = (
            ResponseCycle  # uvicorn builds its own class, and has no hook for another
        )
        self._cycles.append(self.cycle)
        # A queued request is not read on, and so its body not late.
        self._expect(None if self.pipeline else self._bounds.body_seconds)
        if self.pipeline and self._looking is None:
            self._looking = self.loop.call_later(PEER_CHECK_SECONDS, self._look)

    def _check_head(self) -> None:
        """Refuse what the parser lets pass and RFC 9112 (sections 2.3, 3.2 and 6.1) does not."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if version not in ("1.0", "1.1"):
            self._refusal = (505, f"this server speaks HTTP/1.1, not {version}", "malformed")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refusal = (400, "a request has one Host header, and no two", "malformed")
        elif codings and version == "1.0":
            self._refusal = (400, "HTTP/1.0 has no Transfer-Encoding", "malformed")
        elif any(coding.strip().lower() != b"chunked" for coding in codings):
            self._refusal = (501, "a body may be chunked, and have no other coding", "malformed")
        else:
            return
        raise ValueError

    def _rejoin(self) -> None:
        """Have the parser read a body behind an upgrade, or it would pass for the next request.

        Java's client offers HTTP/2 so, whatever it sends. A head with the body's length alone,
        which nobody else sees, has it read; by a new parser, for one takes nothing more behind a
        request that ends its connection.
        """
        if self._parted:
            framing = (b"content-length", b"transfer-encoding")
            told = b"".join(
                b"%s: %s\r\n" % header for header in self.headers if header[0] in framing
            )
            if not self.cycle.keep_alive:
                told += b"connection: close\r\n"
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%s\r\n" % told)
            self._parted = False

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._room = self._bounds.header_bytes
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has come in whole."""
        if self._parted:
            return
        self._room = self._bounds.header_bytes
        self._whole = self._in_head = True
        if self._busy:
            self._limiter.idle.pop(self, None)
        # If it was answered before its end, uvicorn's wait for the next one was cut short.
        self._expect(None if self._busy else self._bounds.header_seconds)
        super().on_message_complete()
        if self.cycle.lingers and self.cycle.response_complete:
            self.transport.close()

    # --- to the client ------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        self._cycles.popleft()
        super().on_response_complete()
        if not self._busy and not self.transport.is_closing():
            self._limiter.idle[self] = None
        if not self._whole:
            bounds = self._bounds
            self._expect(bounds.body_seconds if self._busy else bounds.header_seconds)

    def pause_writing(self) -> None:
        """Note that the client is behind with reading."""
        super().pause_writing()
        self._writing = self.loop.call_later(self._bounds.send_seconds, self._behind)
        self._limiter.record_unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that the client has read everything."""
        super().resume_writing()
        self._sent()

    def _behind(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left > self._limiter.unsent.get(self, 0) - MIN_READ_BYTES:
            self._limiter.count_closed("unread")
            self.transport.abort()
        else:
            self._limiter.record_unsent(self, left)
            self._writing = self.loop.call_later(self._bounds.send_seconds, self._behind)

    def _sent(self) -> None:
        self._limiter.record_unsent(self, 0)
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _left(self) -> bool:
        """Say whether the client has closed its side already, where the system can tell."""
        if not hasattr(select, "POLLRDHUP"):
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _look(self) -> None:
        """End one who went before a reply: with requests queued nothing is read, not even that."""
        self._looking = None
        if self.pipeline and not self._cycles[0].response_started and self._left():
            self._limiter.count_closed("left")
            self.transport.abort()
        elif self.pipeline:
            self._looking = self.loop.call_later(PEER_CHECK_SECONDS, self._look)

    # --- bounds -------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_body(self) -> bool:
        """Whether the headers announce one."""
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 "))
            for name, value in self.headers
        )

    def _expect(self, seconds: float | None) -> None:
        """Give the client so long to send what it is at, or as long as it likes."""
        if self._reading is not None:
            self._reading.cancel()
        late = self._late
        self._reading = None if seconds is None else self.loop.call_later(seconds, late)

    def _leave(self) -> None:
        """Tell the application that its client is gone: uvicorn tells of the last request alone."""
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def _late(self) -> None:
        self._reading = None
        if self.cycle is not None and self.cycle.lingers:  # it was heard out for long enough
            self.transport.abort()
            return
        self._limiter.count_closed("late")
        if not self._busy and (self._whole or not self._in_head):  # nothing begun, or all said
            self.transport.abort()
        else:
            what = "headers" if self._in_head else "body"
            self._refuse(408, f"the request's {what} took too long; send it again", "timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Say why in JSON, if no other reply is under way, and close."""
        self._ended = True
        self._expect(None)
        self._leave()
        if self.pipeline or (self._busy and self.cycle.response_started):
            self.transport.abort()
            return
        request_id = f"req_{secrets.token_hex(12)}"
        client = self.client[0] if self.client else ""
        extra = {"request_id": request_id, "status": status, "client": client}
        log.info("%s %s %s %s", status, message, client, request_id, extra=extra)
        self._limiter.count_rejection(status, code)
        body = ApiError(status, message, code=code).reply.model_dump_json().encode()
        headers = {
            b"content-type": b"application/json",
            b"content-length": str(len(body)).encode(),
            b"connection": b"close",
            b"x-request-id": request_id.encode(),
            **{name.lower().encode(): value.encode() for name, value in SECURITY_HEADERS.items()},
        }
        given = [*self.server_state.default_headers, *headers.items()]
        head = b"".join(b"%s: %s\r\n" % header for header in given)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._limiter.mark_idle(self)  # nothing, but it may make room
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
