"""API compatible with OpenAI's images API, under ``/v1/images``."""
