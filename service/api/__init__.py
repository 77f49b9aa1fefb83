"""HTTP API under ``/v1``: routes, request and reply shapes."""
