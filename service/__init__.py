"""The server, its command line and its page."""

__version__ = "0.1.0"
