"""Reports: the rows of one unit of an experiment, saved one by one so that it can be resumed."""

from __future__ import annotations

import datetime
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
"""A measured row, as JSON.

It names its ``kind`` or ``method``. A row of timings has a list of ``seconds``, or the reason in
``stopped`` if it was not measured. A row of a training has a number of ``seconds``, its ``steps``,
``losses`` and ``evaluations``, and ``unfinished`` while it is being measured.
"""


class Report:
    """Rows of one unit, saved in ``FOLDER/UNIT.json``.

    An interrupted unit continues after its last saved row. Different units may be measured on
    different machines, but all rows of one unit are of the same machine.

    Args:
        folder: Folder of the experiment's units.
        unit: Name of the unit.
        settings: The experiment's settings, as JSON.

    Raises:
        ValueError: If the saved rows have other settings or are from another machine, so they
            cannot be compared.
    """

    def __init__(self, folder: Path, unit: str, settings: Row) -> None:
        self.path, self.unit = folder / f"{unit}.json", unit
        self.folder = folder / unit  # for the state of an unfinished training
        self.facts: Row = {
            "unit": unit,
            "settings": json.loads(json.dumps(settings)),
            "hardware": hardware(),
        }
        self.rows: dict[str, Row] = {}
        self.complete, self.date = False, ""
        if self.path.exists():
            saved = read(self.path)
            self.complete, self.date = saved["complete"], saved["date"]
            for fact, value in self.facts.items():
                if saved[fact] != value and not (self.complete and fact == "hardware"):
                    has_files = self.folder.is_dir() and any(
                        one.name != LOCK_NAME for one in self.folder.iterdir()
                    )
                    also = f" and {self.folder}" if has_files else ""
                    raise ValueError(
                        f"{self.path} holds rows of other {fact}: choose another folder with "
                        f"--out, or delete it{also}"
                    )
            self.facts["hardware"] = saved["hardware"]
            self.rows = saved["rows"]

    def measure(self, key: str, make: Callable[[], Row]) -> Row:
        """Measure the row with this key, save it, and return it."""
        row = self.rows[key] = make()
        self._write()
        return row

    def has(self, key: str) -> bool:
        """Return True if the row with this key exists and is finished."""
        return key in self.rows and not self.rows[key].get("unfinished")

    def publish(self, key: str, row: Row) -> None:
        """Save what is known of a row that is still being measured."""
        self.rows[key] = row | {"unfinished": True}
        self._write()

    def finish(self) -> None:
        """Mark the report as complete."""
        if not self.complete:
            self.complete = True
            self._write()

    def _write(self) -> None:
        self.date = datetime.datetime.now(datetime.UTC).date().isoformat()  # of the last row
        state = {"date": self.date, "complete": self.complete, "rows": self.rows}
        write_atomically(self.path, _format(self.facts | state).encode())


def read(path: Path) -> Row:
    """Read a report; raise ``ValueError`` if the file is damaged or not a report.

    It may have a ``note``, written by hand, of how its rows differ from what would be measured now.
    """
    try:
        saved: Row = json.loads(path.read_text())
        parts = {
            "unit": str, "settings": dict, "hardware": dict, "date": str, "rows": dict,
            "complete": bool,
        }  # fmt: skip
        if not all(isinstance(saved[part], kind) for part, kind in parts.items()):
            raise ValueError("an entry has another type")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a report of `scanline paper`: {error!r}") from None
    return saved


def _format(report: Row) -> str:
    """Format a report as JSON with one line per row and per other entry."""

    def entries(values: Row) -> str:
        return ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in values.items())

    facts = {key: value for key, value in report.items() if key != "rows"}
    return f'{{\n{entries(facts)},\n"rows": {{\n{entries(report["rows"])}\n}}\n}}\n'


def by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group the rows that have a ``kind`` by it, in order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if "kind" in row:
            groups.setdefault(row["kind"], []).append(row)
    return groups


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

    With one CPU thread this is the process's CPU time, which does not count the time that other
    programs run. Otherwise it is the wall-clock time after synchronizing the device.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def timings(run: Callable[[], object], device: torch.device, repeats: int = 3) -> list[float]:
    """Time a call ``repeats`` times, in seconds.

    Short calls are repeated until a timing takes 0.2 seconds, and the timing is their mean.
    """
    began = clock(device)
    run()
    first = clock(device) - began
    count = max(1, round(0.2 / max(first, 1e-6)))
    seconds = [first] if count == 1 else []  # a long call's first run counts
    while len(seconds) < repeats:
        began = clock(device)
        for _ in range(count):
            run()
        seconds.append((clock(device) - began) / count)
    return seconds
