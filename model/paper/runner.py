"""Runner of the experiments of ``scanline paper``, resumable after every row."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import Experiment, Mode, UnitRun
from scanline.model.paper.image_tables import TABLE1, TABLE2
from scanline.model.paper.latency import SUPPLEMENT
from scanline.model.paper.report import Report
from scanline.model.paper.scaling import FIGURE1
from scanline.model.paper.speech.table import TABLE3
from scanline.model.progress import show_progress
from scanline.model.training.host_tuning import keep_freed_memory
from scanline.model.training.run_lock import run_lock

EXPERIMENTS: dict[str, Experiment[Any]] = {
    one.name: one for one in (FIGURE1, FIGURE2, TABLE1, TABLE2, TABLE3, SUPPLEMENT)
}


def device_here() -> torch.device:
    """Return the CUDA device if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def run_units(
    experiment: Experiment[Any],
    folder: Path,
    units: Sequence[str],
    *,
    mode: Mode,
    data_dir: Path | None = None,
    rows: int | None = None,
) -> list[Report]:
    """Run units of an experiment, or their remaining rows.

    The report of a unit is ``FOLDER/MODE/NAME/UNIT.json``.

    Args:
        experiment: The experiment.
        folder: Folder of the results.
        units: Names of the units; empty for all that can be measured on this machine.
        mode: Which settings to use.
        data_dir: Folder of the data sets; for table 3, a folder of speech.
        rows: Largest number of rows to measure in this call; None for all.

    Raises:
        ValueError: If there is no such unit, this machine lacks what it needs, it holds rows of
            other settings, or another process is using it.
    """
    settings = experiment.settings(mode, data_dir)
    known = experiment.units(settings)
    if unknown := [unit for unit in units if unit not in known]:
        raise ValueError(
            f"{experiment.name} has no unit {', '.join(unknown)}: choose {', '.join(known)}"
        )
    for unit in units:
        if lacking := experiment.missing(unit):
            raise ValueError(f"{unit} cannot be measured here: it needs {lacking}")
    chosen = units or [unit for unit in known if experiment.missing(unit) is None]
    home = folder / mode / experiment.name
    if device_here().type == "cpu":
        keep_freed_memory()  # otherwise tensors of 32 MiB or more need fresh pages in every pass
    reports = []
    for unit in chosen:
        report, measured = _run_unit(experiment, unit, settings, home, data_dir, rows)
        reports.append(report)
        if rows is not None:
            rows -= measured
            if rows == 0:
                break
    return reports


def _run_unit(
    experiment: Experiment[Any],
    unit: str,
    settings: Any,
    folder: Path,
    data_dir: Path | None,
    max_rows: int | None,
) -> tuple[Report, int]:
    """Measure the remaining rows of a unit, at most ``max_rows`` of them.

    Returns:
        The unit's report, and the number of rows measured.
    """
    scratch = folder / unit
    try:
        with run_lock(scratch):  # two processes would overwrite each other's rows
            report = Report(folder, unit, asdict(settings))
            run = UnitRun(
                unit=unit, settings=settings, report=report, data_dir=data_dir, device=device_here()
            )
            rows = [] if report.complete else [*experiment.rows(run)]
            remaining = [(key, make) for key, make in rows if not report.has(key)]
            chosen = remaining[:max_rows]
            with show_progress(len(chosen), "row", desc=f"{experiment.name} {unit}") as bar:
                for key, make in chosen:
                    bar.set_postfix_str(key)
                    report.measure(key, make)
                    bar.update()
            if rows and len(chosen) == len(remaining):
                report.finish()
                shutil.rmtree(scratch)  # states of trainings, which are not needed any more
    finally:
        with contextlib.suppress(OSError):  # not empty if a training was interrupted
            scratch.rmdir()
    return report, len(chosen)
