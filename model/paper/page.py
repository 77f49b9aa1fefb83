"""``docs/paper.md``: the paper's claims, its figures, ours, and whether they hold here."""

from __future__ import annotations

import os
from pathlib import Path

from scanline.model.atomic_files import write_atomically
from scanline.model.paper.report import read
from scanline.model.paper.runner import EXPERIMENTS
from scanline.model.paper.sampling_speed import precision_note


def write_page(folder: Path, page: Path) -> None:
    """Write the page from a folder's reports, whose plots it shows.

    Raises ``ValueError`` where there are none, or where they are of different machines.
    """
    write_atomically(page, make_page(folder, page.parent).encode())


def make_page(folder: Path, beside: Path) -> str:
    """Give the page's text from a folder's reports; plots are named as seen from ``beside``."""
    there = {name: folder / f"{name}.json" for name in EXPERIMENTS}
    reports = {name: read(path) for name, path in there.items() if path.exists()}
    if unfinished := [name for name, report in reports.items() if not report["complete"]]:
        raise ValueError(f"{', '.join(unfinished)} was broken off: run it again, and it goes on")
    if not reports:
        raise ValueError(f"no reports in {folder}: `scanline paper figure1 --quick` makes one")
    machines = [report["hardware"] for report in reports.values()]
    if any(machine != machines[0] for machine in machines):
        raise ValueError(f"the reports in {folder} are of different machines")
    machine = machines[0]
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    lines = [
        "# The paper, run again",
        "",
        "Katharopoulos, Vyas, Pappas and Fleuret, [*Transformers are RNNs*]"
        "(https://arxiv.org/abs/2006.16236), ICML 2020: its figures and tables, run by `scanline "
        "paper` and written by `scanline paper page`. No figure of ours is typed in.",
        "",
        f"Hardware: {machine['cpu']}, {machine['isa']}, {threads} of {machine['cores']} cores, "
        f"{machine['gpu'] or 'no GPU'}; PyTorch {machine['torch']}."
        + (
            " Times are processor time, not wall-clock time."
            if machine["threads"] == 1 and not machine["gpu"]
            else ""
        ),
        "",
        "| the paper's claim | here | holds |",
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
