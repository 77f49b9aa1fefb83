"""HTTP/1.1 server protocol with limits, on top of uvicorn's httptools protocol.

uvicorn limits neither the time that a client takes to send a request or to read a reply, nor the
total size of a request's headers, nor the connections of one client. This package adds:

- limits on the request line, headers, trailers and chunk extensions (414, 431);
- timeouts for headers, bodies and unread replies (408, or an aborted connection);
- a limit on connections, and a policy that decides which connection makes room for a new one (503);
- a limit on all unread reply bytes together, and on pipelined requests;
- JSON errors for requests that break RFC 9112, and a lingering close so that clients can read them;
- cancellation of requests whose client has disconnected, even while others are pipelined.

It overrides private parts of ``uvicorn.protocols.http.httptools_impl``. These parts are the same in
uvicorn 0.35 (the oldest version that ``pyproject.toml`` allows) and 0.54 (the version tested);
``tests/service/http/protocol`` fails if a later version changes them.
"""
