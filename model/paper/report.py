"""Report of an experiment: rows in a JSON file, saved one by one so that it can be resumed."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from scanline.kernels.native.cpu import cpu, cpu_isas, usable_cores
from scanline.model.atomic_files import write_atomically
from scanline.model.training.run_lock import LOCK_NAME

Row = dict[str, Any]


class Report:
    """Rows of one experiment by key, saved in ``FOLDER/NAME.json``.

    An interrupted experiment continues after its last saved row.

    Args:
        folder: folder of the reports.
        name: name of the experiment.
        settings: its settings, as JSON.

    Raises:
        ValueError: the saved rows have other settings or are from another machine, so they cannot
            be compared.
    """

    def __init__(self, folder: Path, name: str, settings: Row) -> None:
        self.path, self.name = folder / f"{name}.json", name
        self.folder = folder / name  # for training runs and data sets
        self.facts: Row = {
            "experiment": name,
            "settings": json.loads(json.dumps(settings)),
            "hardware": hardware(),
        }
        self.rows: dict[str, Row] = {}
        self.complete = False
        if self.path.exists():
            saved = read(self.path)
            self.complete = saved["complete"]
            for fact, value in self.facts.items():
                if saved[fact] != value:
                    has_files = self.folder.is_dir() and any(
                        one.name != LOCK_NAME for one in self.folder.iterdir()
                    )
                    also = f" and {self.folder}" if has_files else ""
                    raise ValueError(
                        f"{self.path} holds rows of other {fact}: choose another folder with "
                        f"--out, or delete it{also}"
                    )
            self.rows = saved["rows"]

    def row(self, key: str, make: Callable[[], Row]) -> Row:
        """Return the row with this key, measuring and saving it if it does not exist yet."""
        if key not in self.rows:
            self.rows[key] = make()
            self._write()
        return self.rows[key]

    def finish(self) -> None:
        """Mark the report as complete."""
        if not self.complete:
            self.complete = True
            self._write()

    def _write(self) -> None:
        everything = self.facts | {"complete": self.complete, "rows": self.rows}
        write_atomically(self.path, f"{json.dumps(everything, indent=1)}\n".encode())


def read(path: Path) -> Row:
    """Read a report; raise ``ValueError`` if the file is damaged or not a report."""
    try:
        saved: Row = json.loads(path.read_text())
        parts = {
            "experiment": str, "settings": dict, "hardware": dict, "rows": dict, "complete": bool,
        }  # fmt: skip
        if not all(isinstance(saved[part], kind) for part, kind in parts.items()):
            raise ValueError("an entry has another type")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a report of `scanline paper`: {error!r}") from None
    return saved


def by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group the rows that have a ``kind`` by it, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "kind" in row:
            groups.setdefault(row["kind"], []).append(row)
    return groups


def trained(rows: dict[str, Row]) -> list[Row]:
    """Return the rows of trained networks, in order."""
    return [row for key, row in rows.items() if key.startswith("train ")]


def hardware() -> Row:
    """Describe this machine and the part of it that is used."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu()[0], "isa": cpu_isas()[0], "cores": usable_cores(),
        "threads": torch.get_num_threads(), "gpu": device, "system": platform.system(),
        "torch": torch.__version__,
    }  # fmt: skip


def clock(device: torch.device) -> float:
    """Return a time in seconds, for differences.

    With one CPU thread this is the process's CPU time, which other programs do not affect.
    Otherwise it is the wall-clock time after synchronizing the device.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def timed(run: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Return the shortest time of several calls, in seconds: disturbances only add to it.

    Short calls are repeated for half a second, at most ten times as often as ``repeats``.
    """
    seconds: list[float] = []
    while len(seconds) < repeats or (sum(seconds) < 0.5 and len(seconds) < 10 * repeats):
        began = clock(device)
        run()
        seconds.append(clock(device) - began)
    return min(seconds)
