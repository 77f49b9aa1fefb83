"""Runner of the experiments of ``scanline paper``, resumable after every row."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import Experiment
from scanline.model.paper.image_tables import TABLE1, TABLE2
from scanline.model.paper.latency import SUPPLEMENT
from scanline.model.paper.report import Report
from scanline.model.paper.scaling import FIGURE1
from scanline.model.paper.speech.table import TABLE3
from scanline.model.progress import show_progress
from scanline.model.training.run_lock import run_lock

EXPERIMENTS: dict[str, Experiment[Any]] = {
    one.name: one for one in (FIGURE1, FIGURE2, TABLE1, TABLE2, TABLE3, SUPPLEMENT)
}


def run_experiment(
    experiment: Experiment[Any], folder: Path, *, quick: bool, data_dir: Path | None = None
) -> Report:
    """Run an experiment, or its remaining rows, on a CUDA device if there is one.

    Args:
        experiment: the experiment.
        folder: folder of its report ``NAME.json``.
        quick: use the settings that take minutes instead of the paper's.
        data_dir: folder of the data sets; for table 3, a folder of speech.

    Raises:
        ValueError: the folder holds rows of other settings, or another process is using it.
    """
    name = experiment.name
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = experiment.settings(quick, data_dir)
    try:
        with run_lock(folder / name):  # two processes would overwrite each other's rows
            report = Report(folder, name, {"quick": quick, **asdict(settings)})
            rows = list(experiment.rows(settings, report, data_dir, device))
            with show_progress(len(rows), "row", desc=name) as bar:
                for key, make in rows:
                    bar.set_postfix_str(key)
                    report.row(key, make)
                    bar.update()
            report.finish()
    finally:
        with contextlib.suppress(OSError):  # not empty if a network was trained
            (folder / name).rmdir()
    return report
