"""Tests of the JSON log format."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from scanline.service.logs import JsonFormatter


def test_json_lines_have_every_field_of_an_event() -> None:
    fields = {"n": 3, "folder": Path("runs"), "_ray_timestamp_ns": 1, "color_message": "x"}
    record = logging.makeLogRecord(
        {"name": "scanline", "levelname": "INFO", "msg": "drawn", **fields}
    )
    line = json.loads(JsonFormatter().format(record))
    assert line.pop("time")
    assert line == {
        "level": "info", "logger": "scanline", "message": "drawn", "n": 3, "folder": "runs",
    }  # fmt: skip
