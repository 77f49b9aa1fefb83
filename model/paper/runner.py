"""What ``scanline paper`` runs: each experiment row by row, shown as it goes, and to be gone on."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import Experiment
from scanline.model.paper.image_tables import TABLE1, TABLE2
from scanline.model.paper.latency import SUPPLEMENT
from scanline.model.paper.report import Report
from scanline.model.paper.scaling import FIGURE1
from scanline.model.paper.speech.table import TABLE3
from scanline.model.training.run_lock import run_lock

EXPERIMENTS: dict[str, Experiment[Any]] = {
    one.name: one for one in (FIGURE1, FIGURE2, TABLE1, TABLE2, TABLE3, SUPPLEMENT)
}


def run_experiment(
    experiment: Experiment[Any], folder: Path, *, quick: bool, data_dir: Path | None = None
) -> Report:
    """Run an experiment, or what is left of it, and give its report.

    It is kept in ``folder`` as ``NAME.json``. ``data_dir`` holds the data sets, and for table 3 it
    is a folder of speech. Runs on a CUDA device if there is one. Raises ``ValueError`` where the
    folder holds rows of other settings, or another process makes some.
    """
    name = experiment.name
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = experiment.settings(quick, data_dir)
    try:
        with run_lock(folder / name):  # another process's rows would be lost, and its training
            report = Report(folder, name, {"quick": quick, **asdict(settings)})
            rows = list(experiment.rows(settings, report, data_dir, device))
            with tqdm(rows, unit="row", desc=name) as bar:
                for key, make in bar:
                    bar.set_postfix_str(key)
                    report.row(key, make)
            report.finish()
    finally:
        with contextlib.suppress(OSError):  # it holds what was trained, if anything was
            (folder / name).rmdir()
    return report
