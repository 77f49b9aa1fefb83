"""What ``scanline paper`` runs: each experiment row by row, shown as it goes, and to be gone on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from scanline.model.paper import copying, images, latency, lengths
from scanline.model.paper.report import Report, Row
from scanline.model.paper.speech import table as speech
from scanline.model.training.claim import claimed

EXPERIMENTS = ("figure1", "figure2", "table1", "table2", "table3", "supplement")

Rows = list[tuple[str, Callable[[], Row]]]


def run(name: str, folder: Path, *, quick: bool, data_dir: Path | None = None) -> Report:
    """Run an experiment, or what is left of it, and give its report.

    It is kept in ``folder`` as ``NAME.json``. ``data_dir`` holds the data sets, and for table 3 it
    is a folder of speech. Runs on a CUDA device if there is one. Raises ``ValueError`` on an
    unknown name, or where the folder holds rows of other settings, or another process makes some.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no {name!r}; there are {', '.join(EXPERIMENTS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings, plan = _planned(name, quick, data_dir)
    try:
        with claimed(folder / name):  # another process's rows would be lost, and its training
            report = Report(folder, name, {"quick": quick, **asdict(settings)})
            with tqdm(plan(report, data_dir, device), unit="row", desc=name) as bar:
                for key, make in bar:
                    bar.set_postfix_str(key)
                    report.row(key, make)
            report.finish()
    finally:
        with contextlib.suppress(OSError):  # it holds what was trained, if anything was
            (folder / name).rmdir()
    return report


def _planned(
    name: str, quick: bool, data_dir: Path | None = None
) -> tuple[Any, Callable[[Report, Path | None, Any], Rows]]:
    """Give an experiment's settings, and what lists its rows."""
    if name == "figure1":
        size = lengths.QUICK if quick else lengths.FULL
        return size, lambda report, _, device: list(_lengths(size, report, device))
    if name == "figure2":
        task = copying.QUICK if quick else copying.FULL
        return task, lambda report, _, device: list(copying.rows(task, device))
    if name == "supplement":
        sweep = latency.QUICK if quick else latency.FULL
        return sweep, lambda report, _, device: list(latency.rows(sweep))
    if name == "table3":
        spoken = speech.QUICK if quick else speech.FULL
        if data_dir:
            spoken = replace(spoken, data=data_dir.resolve().name)
        return spoken, lambda report, data_dir, device: list(
            speech.rows(spoken, report, data_dir, device)
        )
    table = (images.QUICK if quick else images.FULL)[name]
    return table, lambda report, data_dir, device: list(
        images.rows(table, report, data_dir, device)
    )


def _lengths(
    size: lengths.Lengths, report: Report, device: torch.device
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Give figure 1's rows: each kind's next length goes by what the one before took."""
    for kind in lengths.all_kinds():
        for length in lengths.lengths(size):

            def make(kind: str = kind, length: int = length) -> Row:
                before = report.rows.get(f"{kind} {length // 2}")
                return lengths.measure(kind, length, size, before, device)

            yield f"{kind} {length}", make
