"""The server, its command line and its page."""

from importlib.metadata import version

__version__ = version("scanline")
