"""Benchmarks of the HTTP service (``scanline bench --http``)."""
