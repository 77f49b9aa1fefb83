"""What the service costs beside what it serves (`scanline bench --http`)."""
