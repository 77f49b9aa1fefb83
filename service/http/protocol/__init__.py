"""HTTP/1.1 protocol with bounded connections, on top of uvicorn."""
