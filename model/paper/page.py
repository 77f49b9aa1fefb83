"""Page ``docs/paper.md``: the paper's claims and results beside ours."""

from __future__ import annotations

import os
from pathlib import Path

from scanline.model.atomic_files import write_atomically
from scanline.model.paper.report import read
from scanline.model.paper.runner import EXPERIMENTS
from scanline.model.paper.sampling_speed import precision_note


def write_page(folder: Path, page: Path) -> None:
    """Write the page from the reports and plots in a folder.

    Raises:
        ValueError: there are no reports, one is incomplete, or they are of different machines.
    """
    write_atomically(page, render_page(folder, page.parent).encode())


def render_page(folder: Path, beside: Path) -> str:
    """Render the page from the reports in a folder, with links to plots relative to ``beside``."""
    paths = {name: folder / f"{name}.json" for name in EXPERIMENTS}
    reports = {name: read(path) for name, path in paths.items() if path.exists()}
    if unfinished := [name for name, report in reports.items() if not report["complete"]]:
        raise ValueError(f"{', '.join(unfinished)} is incomplete: run it again to continue it")
    if not reports:
        raise ValueError(
            f"no reports in {folder}: run `scanline paper figure1 --quick`, for example"
        )
    machines = [report["hardware"] for report in reports.values()]
    if any(machine != machines[0] for machine in machines):
        raise ValueError(f"the reports in {folder} are from different machines")
    machine = machines[0]
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    lines = [
        "# Reproducing the paper",
        "",
        "This page compares the figures and tables of Katharopoulos, Vyas, Pappas and Fleuret, "
        "[*Transformers are RNNs*](https://arxiv.org/abs/2006.16236) (ICML 2020), with our "
        "measurements. `scanline paper` runs the experiments and `scanline paper page` generates "
        "this page from their reports, so none of our numbers is typed by hand.",
        "",
        "Compare orders and ratios, not absolute numbers: the machine is not the paper's, and "
        "`--quick` settings train small networks for minutes.",
        "",
        f"Hardware: {machine['cpu']}, {machine['isa']}, {threads} of {machine['cores']} cores, "
        f"{machine['gpu'] or 'no GPU'}; PyTorch {machine['torch']}."
        + (
            " Times are CPU time of the process, not wall-clock time."
            if machine["threads"] == 1 and not machine["gpu"]
            else ""
        ),
        "",
        "| claim of the paper | measured here | holds |",
        "|---|---|---|",
    ]
    verdicts = [
        v for name, report in reports.items() for v in EXPERIMENTS[name].verdicts(report["rows"])
    ]
    lines += [f"| {v.claim} | {v.found} | {'yes' if v.holds else '**no**'} |" for v in verdicts]
    for name, report in reports.items():
        one, rows, settings = EXPERIMENTS[name], report["rows"], report["settings"]
        how = f"`scanline paper {name}{' --quick' if settings['quick'] else ''}`."
        said = f"{how} {one.caption(settings)}{precision_note(rows)}"
        lines += ["", f"## {one.title}", "", said, ""]
        if (folder / f"{name}.png").exists():
            plot = Path(os.path.relpath(folder / f"{name}.png", beside)).as_posix()
            lines += [f"![{one.title}]({plot})", ""]
        lines.append(one.table(rows))
    return "\n".join(lines) + "\n"
