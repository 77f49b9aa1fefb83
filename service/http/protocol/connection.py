"""Connection handler: uvicorn's httptools protocol with limits on size and time."""

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
PEER_CHECK_SECONDS = 1.0  # interval of the check for disconnected clients with queued requests
LINGER_SECONDS = 2.0  # how long a rejected client may keep sending, so that it reads its error
MIN_READ_BYTES = 16_384  # bytes of a reply that a client must read per `send_seconds`


class BoundedHttpProtocol(HttpToolsProtocol):
    """Connection of one client, with limits.

    ``header_bytes`` bounds each part of a request that the parser buffers or skips: the headers
    with the request line, the trailers, and what stands between two pieces of a body. Timeouts
    bound how long the client takes to send headers and body, and to read the reply. Rejections are
    JSON errors. ``ConnectionLimiter`` decides whether the connection is admitted at all.
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
        self._limiter, self._limits = limiter, limiter.limits
        self._parser_budget = self._limits.header_bytes  # bytes until the parser must make progress
        self._between_requests = True  # no request has been received partly
        self._in_headers = True
        self._upgrade_body_pending = False  # the parser takes the body for another protocol's data
        self._cycles: deque[ResponseCycle] = deque()  # unanswered, the current one first
        self._input_closed = False  # all further input is ignored
        self._error: tuple[int, str, str] | None = None  # that a parser callback found
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._peer_timer: asyncio.TimerHandle | None = None

    # --- opening and closing ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the client, or reject it with 503."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause writing while anything is unsent
        client = client_network(client_address(self.client[0] if self.client else ""))
        if not self._limiter.admit(self, client):
            self._reject(503, "the server is at its connection limit; try again soon", "full")
            if not self._limiter.allow_lingering(self):
                transport.close()
            return
        self._set_read_timeout(self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's timers and its place in the limiter."""
        self._limiter.release(self)
        self._set_read_timeout(None)
        self._on_flushed()
        if self._peer_timer is not None:
            self._peer_timer.cancel()
        self._notify_disconnect()
        super().connection_lost(exc)

    # --- input --------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Feed the parser, in pieces no larger than its remaining budget."""
        if self._input_closed:
            return
        if (
            self._between_requests
            and not self._busy
            and data.startswith(b"POST ")
            and self._peer_closed()
        ):
            # The client sent a request and disconnected. Nothing is drawn for it, so a flood of
            # such requests costs other clients nothing.
            self._input_closed = True
            self._limiter.count_closed("left")
            self.transport.abort()
            return
        if self._read_timer is None and self._between_requests and not self._busy:
            self._set_read_timeout(self._limits.header_seconds)
        self._unset_keepalive_if_required()
        at = 0
        while at < len(data) and not self._input_closed and not self.transport.is_closing():
            piece = data[at : at + self._parser_budget]
            at += len(piece)
            self._parser_budget -= len(piece)  # parser callbacks reset it
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                # The request is answered as plain HTTP/1.1, so parsing continues after it.
                at += upgrade.args[0] - len(piece)
                self._continue_after_upgrade()
            except httptools.HttpParserError:
                reason = "this is not HTTP/1.1 as RFC 9112 defines it, or its method is unknown"
                self._reject(*(self._error or (400, reason, "malformed")))
                return
            if self._parser_budget <= 0:
                limit = f"{self._limits.header_bytes:,} bytes"
                self._reject(431, f"the headers exceed {limit}; send fewer", "too_large")

    def on_message_begin(self) -> None:
        """Begin a request."""
        if self._upgrade_body_pending:
            return
        super().on_message_begin()
        self._between_requests, self._in_headers = False, True

    def on_url(self, url: bytes) -> None:
        """Append a piece of the URL; reject a URL that is too long."""
        if not self._in_headers:
            return
        super().on_url(url)
        if len(self.url) > MAX_URL:
            self._error = (414, f"the URL exceeds {MAX_URL:,} bytes; make it shorter", "too_long")
            raise ValueError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header; ignore trailers, which could otherwise pass for headers."""
        if not self._in_headers:
            return
        super().on_header(name, value.strip(b" \t"))  # the parser leaves blanks behind the value
        if len(self.headers) > MAX_HEADERS:
            message = f"there are over {MAX_HEADERS} headers; send fewer"
            self._error = (431, message, "too_many")
            raise ValueError

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the current one."""
        if not self._in_headers:
            return
        self._in_headers = False
        self._parser_budget = self._limits.header_bytes
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError  # without a reply, because earlier replies are pending
        self._check_headers()
        self._upgrade_body_pending = self.parser.should_upgrade() and self._has_body
        super().on_headers_complete()
        # uvicorn builds its own class here, and has no hook for another.
        self.cycle.__class__ = ResponseCycle
        self._cycles.append(self.cycle)
        # While requests are queued nothing is read, so the client cannot be late with a body.
        self._set_read_timeout(None if self.pipeline else self._limits.body_seconds)
        if self.pipeline and self._peer_timer is None:
            self._peer_timer = self.loop.call_later(PEER_CHECK_SECONDS, self._check_peer)

    def _check_headers(self) -> None:
        """Reject headers that the parser accepts against RFC 9112, sections 2.3, 3.2 and 6.1."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if version not in ("1.0", "1.1"):
            self._error = (505, f"this server speaks HTTP/1.1, not {version}", "malformed")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._error = (400, "a request must have exactly one Host header", "malformed")
        elif codings and version == "1.0":
            self._error = (400, "HTTP/1.0 has no Transfer-Encoding", "malformed")
        elif any(coding.strip().lower() != b"chunked" for coding in codings):
            message = "the only Transfer-Encoding of a request that is supported is chunked"
            self._error = (501, message, "malformed")
        else:
            return
        raise ValueError

    def _continue_after_upgrade(self) -> None:
        """Parse the body of a request that offered an upgrade.

        The parser stops after the headers of such a request (Java's HTTP client offers HTTP/2 this
        way), and would parse the body as the next request. A new parser is fed headers with the
        body's framing only, which the application never sees. The old parser cannot be used,
        because it accepts no data after a request that closes its connection.
        """
        if self._upgrade_body_pending:
            framing = (b"content-length", b"transfer-encoding")
            headers = b"".join(
                b"%s: %s\r\n" % header for header in self.headers if header[0] in framing
            )
            if not self.cycle.keep_alive:
                headers += b"connection: close\r\n"
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%s\r\n" % headers)
            self._upgrade_body_pending = False

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of a body."""
        self._parser_budget = self._limits.header_bytes
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Finish a request that has been received completely."""
        if self._upgrade_body_pending:
            return
        self._parser_budget = self._limits.header_bytes
        self._between_requests = self._in_headers = True
        if self._busy:
            self._limiter.idle.pop(self, None)
        # If the reply was complete before the request was, uvicorn has already stopped its
        # keep-alive timer, so a timeout for the next request is needed here.
        self._set_read_timeout(None if self._busy else self._limits.header_seconds)
        super().on_message_complete()
        if self.cycle.lingers and self.cycle.response_complete:
            self.transport.close()

    # --- output -------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Start the next queued request, or wait for one."""
        self._cycles.popleft()
        super().on_response_complete()
        if not self._busy and not self.transport.is_closing():
            self._limiter.idle[self] = None
        if not self._between_requests:
            limits = self._limits
            self._set_read_timeout(limits.body_seconds if self._busy else limits.header_seconds)

    def pause_writing(self) -> None:
        """Start the write timeout, because the client has not read everything yet."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.send_seconds, self._on_write_timeout)
        self._limiter.record_unsent(self, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop the timeout, because the client has read everything."""
        super().resume_writing()
        self._on_flushed()

    def _on_write_timeout(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent > self._limiter.unsent.get(self, 0) - MIN_READ_BYTES:
            self._limiter.count_closed("unread")
            self.transport.abort()
        else:
            self._limiter.record_unsent(self, unsent)
            self._write_timer = self.loop.call_later(
                self._limits.send_seconds, self._on_write_timeout
            )

    def _on_flushed(self) -> None:
        self._limiter.record_unsent(self, 0)
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _peer_closed(self) -> bool:
        """Return True if the client has closed its side; False where the system cannot tell."""
        if not hasattr(select, "POLLRDHUP"):
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def _check_peer(self) -> None:
        """Abort the connection if the client closed it before the current reply began.

        While requests are queued nothing is read from the socket, so asyncio does not notice.
        """
        self._peer_timer = None
        if self.pipeline and not self._cycles[0].response_started and self._peer_closed():
            self._limiter.count_closed("left")
            self.transport.abort()
        elif self.pipeline:
            self._peer_timer = self.loop.call_later(PEER_CHECK_SECONDS, self._check_peer)

    # --- timeouts and rejections --------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_body(self) -> bool:
        """True if the headers announce a body."""
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 "))
            for name, value in self.headers
        )

    def _set_read_timeout(self, seconds: float | None) -> None:
        """Restart the timeout for the client's input; None turns it off."""
        if self._read_timer is not None:
            self._read_timer.cancel()
        callback = self._on_read_timeout
        self._read_timer = None if seconds is None else self.loop.call_later(seconds, callback)

    def _notify_disconnect(self) -> None:
        """Send `http.disconnect` to every unanswered request; uvicorn does so for the last only."""
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self.cycle is not None and self.cycle.lingers:  # already answered
            self.transport.abort()
            return
        self._limiter.count_closed("late")
        if not self._busy and (self._between_requests or not self._in_headers):
            self.transport.abort()  # no request has begun, or the last one has been answered
        else:
            part = "headers" if self._in_headers else "body"
            self._reject(408, f"the request's {part} took too long; send it again", "timeout")

    def _reject(self, status: int, message: str, code: str) -> None:
        """Send a JSON error, unless another reply is being sent, and close the connection."""
        self._input_closed = True
        self._set_read_timeout(None)
        self._notify_disconnect()
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
        lines = [*self.server_state.default_headers, *headers.items()]
        head = b"".join(b"%s: %s\r\n" % header for header in lines)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._limiter.mark_idle(self)  # it may make room for another connection
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)
