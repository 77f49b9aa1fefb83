"""What an experiment found: rows in a JSON file, each written as it is known, so a run goes on."""

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
    """The rows of one experiment by their keys, kept in ``folder``.

    An experiment that was broken off goes on behind its last row. Raises ``ValueError`` where the
    folder holds rows of other settings, or from another machine: they cannot be compared.
    """

    def __init__(self, folder: Path, name: str, settings: Row) -> None:
        self.path, self.name = folder / f"{name}.json", name
        self.folder = folder / name  # for what rows are made with: runs, speech
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
                    kept = self.folder.is_dir() and any(
                        one.name != LOCK_NAME for one in self.folder.iterdir()
                    )
                    whole = f" and {self.folder}" if kept else ""
                    raise ValueError(
                        f"{self.path} holds rows of other {fact}: give another --out, or delete "
                        f"it{whole}"
                    )
            self.rows = saved["rows"]

    def row(self, key: str, make: Callable[[], Row]) -> Row:
        """Give the row of this key, made and written down if it is not there yet."""
        if key not in self.rows:
            self.rows[key] = make()
            self._write()
        return self.rows[key]

    def finish(self) -> None:
        """Write down that no row is missing."""
        if not self.complete:
            self.complete = True
            self._write()

    def _write(self) -> None:
        everything = self.facts | {"complete": self.complete, "rows": self.rows}
        write_atomically(self.path, f"{json.dumps(everything, indent=1)}\n".encode())


def read(path: Path) -> Row:
    """Read a report's file; raises ``ValueError`` on one that is damaged or of something else."""
    try:
        saved: Row = json.loads(path.read_text())
        parts = {
            "experiment": str, "settings": dict, "hardware": dict, "rows": dict, "complete": bool,
        }  # fmt: skip
        if not all(isinstance(saved[part], kind) for part, kind in parts.items()):
            raise ValueError("a part is of another kind")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no report of `scanline paper`: {error!r}") from None
    return saved


def by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Put rows that have a ``kind`` together by it, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "kind" in row:
            found.setdefault(row["kind"], []).append(row)
    return found


def trained(rows: dict[str, Row]) -> list[Row]:
    """Give the rows of what was trained, in their order."""
    return [row for key, row in rows.items() if key.startswith("train ")]


def hardware() -> Row:
    """Name this machine, and what of it is used."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": cpu()[0], "isa": cpu_isas()[0], "cores": usable_cores(),
        "threads": torch.get_num_threads(), "gpu": device, "system": platform.system(),
        "torch": torch.__version__,
    }  # fmt: skip


def clock(device: torch.device) -> float:
    """Give the seconds so far.

    On one CPU thread these are the seconds that this process computed, which other programs do not
    lengthen; else those on the wall, once the device is done.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def timed(run: Callable[[], object], device: torch.device, repeats: int = 1) -> float:
    """Give the seconds that a call takes, the least of several: what disturbs it only adds.

    Short calls are repeated more often, for half a second.
    """
    seconds: list[float] = []
    while len(seconds) < repeats or (sum(seconds) < 0.5 and len(seconds) < 10 * repeats):
        began = clock(device)
        run()
        seconds.append(clock(device) - began)
    return min(seconds)
