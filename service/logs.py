"""Logs: one line an event, plain or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from typing import Any

_EXTRAS = (
    "request_id", "method", "path", "status", "milliseconds", "client", "key", "generation",
    "model", "n", "outcome", "code", "param",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with the request's fields where there are any."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """Give a record as JSON."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: getattr(record, key) for key in _EXTRAS if hasattr(record, key)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logs(style: str, level: str) -> None:
    """Send every log and warning of the process to standard error, as ``text`` or ``json``."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter(
        "%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
    )
    handler.setFormatter(JsonFormatter() if style == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # whoever sent it is told
    # Its word for the server itself: nothing of it is an error unless its level says so.
    logging.getLogger("uvicorn.error").name = "uvicorn"
    logging.captureWarnings(True)
    mute_pillow()


def mute_pillow() -> None:
    """Drop what Pillow warns of in pictures: whoever sent one is told what is wrong with it.

    Python would keep each text for ever, and many say a number of the picture's.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")
