"""A run's log, a line of JSON for each step and each validation."""

from __future__ import annotations

import json
from pathlib import Path


class TrainingLog:
    """``log.jsonl`` in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"

    def start(self) -> None:
        """Begin it anew; what is there, as of a run killed before it saved anything, goes aside."""
        if self._path.exists():
            self._path.replace(self._path.with_name("log-before.jsonl"))

    def repair(self) -> None:
        """End a line that was never written whole, as on a full disk."""
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a") as file:
                file.write("\n")

    def append(self, fields: dict[str, float | None]) -> None:
        """Write a line, its numbers to five places; raises ``OSError`` that names the file."""
        line = {k: None if value is None else round(value, 5) for k, value in fields.items()}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise OSError(
                f"{self._path} cannot be written ({error.strerror}): make room for it, and "
                "--resume goes on from what was saved last, if anything was"
            ) from error
