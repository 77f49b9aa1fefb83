"""Log of a run: one JSON line per step and per validation."""

from __future__ import annotations

import json
from pathlib import Path


class TrainingLog:
    """The file ``log.jsonl`` in a run's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.jsonl"

    def start(self) -> None:
        """Start a new log, moving an existing one to ``log-before.jsonl``.

        One exists if an earlier run was killed before its first checkpoint.
        """
        if self._path.exists():
            self._path.replace(self._path.with_name("log-before.jsonl"))

    def repair(self) -> None:
        """Terminate a last line that was cut short, for example by a full disk."""
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a") as file:
                file.write("\n")

    def append(self, fields: dict[str, float | None]) -> None:
        """Append a line, rounding numbers to five decimals.

        Raises:
            OSError: If the file cannot be written; the message names it.
        """
        line = {k: None if value is None else round(value, 5) for k, value in fields.items()}
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise OSError(
                f"cannot write {self._path} ({error.strerror}): free some disk space, then use "
                "--resume to continue from the last checkpoint, if there is one"
            ) from error
