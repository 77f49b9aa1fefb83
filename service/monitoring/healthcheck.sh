#!/bin/sh
# Health check of the container image: succeeds if the server is ready. The server's port is the
# `--port` of the container's command (the process given as $1, by default 1), or SCANLINE_PORT.
set -eu
port=$(tr '\0 ' '\n\n' <"/proc/${1:-1}/cmdline" |
    sed -n '/^serve$/,$ { s/^--port=//p; /^--port$/ { n; p; }; }' | tail -n 1)
exec wget -q -O /dev/null -T 2 -t 1 --no-proxy \
    "http://localhost:${port:-${SCANLINE_PORT:-8000}}/readyz"
