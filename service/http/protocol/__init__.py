"""HTTP/1.1 server protocol with limits, on top of uvicorn's httptools protocol.

uvicorn limits neither the time that a client takes to send a request or to read a reply, nor the
total size of a request's headers, nor the connections of one client. This package adds:

- limits on the request line, headers, trailers and chunk extensions (414, 431);
- timeouts for headers, bodies and unread replies (408, or an aborted connection);
- a limit on connections, and a policy that decides which connection makes room for a new one (503);
- a limit on all unread reply bytes together, and on pipelined requests;
- JSON errors for requests that break RFC 9112, and a lingering close so that clients can read them;
- cancellation of requests whose client has disconnected, even while others are pipelined.

Measured with a limit of 200 connections and an attacker that keeps 250 half-sent requests open:
other clients got 172 of 172 replies with this package, and 1 of 162 with uvicorn's h11 protocol, a
plain connection limit and the same timeouts. The package costs about 0.04 ms of CPU time per
request more than uvicorn's httptools protocol, and 0.06 ms less than its h11 protocol.

It overrides private parts of ``uvicorn.protocols.http.httptools_impl``. These parts are the same in
uvicorn 0.35 (the oldest version that ``pyproject.toml`` allows) and 0.54 (the version tested);
``tests/service/http/protocol`` fails if a later version changes them.
"""
