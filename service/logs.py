"""Logging as text or JSON, one line per event."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import Any

# Attributes of every record. A record's others are fields of the event (``extra``), except those
# that start with an underscore, such as Ray's.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "color_message"}


def _is_field(name: str) -> bool:
    return name not in _STANDARD and not name.startswith("_")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object, with the fields of its request if it has one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if _is_field(key)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logs(style: str, level: str) -> None:
    """Send all logs and warnings of the process to standard error.

    Args:
        style: ``text`` or ``json``.
        level: Name of the lowest level that is logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter(
        "%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
    )
    handler.setFormatter(JsonFormatter() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # the client gets an error reply
    # uvicorn logs everything about the server under this name, not only errors.
    logging.getLogger("uvicorn.error").name = "uvicorn"
    logging.captureWarnings(True)
    mute_pillow()


def mute_pillow() -> None:
    """Ignore Pillow's warnings about images; the client gets an error reply if one is invalid.

    Python would keep each distinct text for ever, and many contain a number from the image.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
