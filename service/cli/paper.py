"""``scanline paper``: reproduction of the paper's figures and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from scanline.service.cli.options import DataDir, Download

Quick = Annotated[
    bool,
    typer.Option("--quick", help="Take about a minute per unit: small networks, short sequences."),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Use the paper's settings, which need a GPU and days."),
]
Units = Annotated[
    list[str] | None,
    typer.Option(
        "--unit", help="Measure only this unit, such as lsh-4. Can be given several times."
    ),
]
RowCount = Annotated[
    int | None,
    typer.Option("--rows", min=1, help="Stop after this number of new rows."),
]
Folder = Annotated[
    Path,
    typer.Option("--out", help="Folder of the results. Unfinished results are continued."),
]
Threads = Annotated[
    int,
    typer.Option(min=1, help="CPU threads. With one, other programs do not distort the timings."),
]
Speech = Annotated[
    Path | None,
    typer.Option(
        "--speech",
        help="Folder of speech with the subfolders train, validation and test. Each utterance is "
        "NAME.npy (float features, frames × features) and NAME.txt (phonemes separated by spaces). "
        "Default: sentences spoken by espeak-ng, which must be installed.",
    ),
]
FOLDER = Path("runs/paper")
REPORTS = "Prints a table, and writes one report per unit. An unfinished unit is continued."
DATASETS = {"table1": "mnist", "table2": "cifar10"}  # experiments on images, with their data sets

paper = typer.Typer(no_args_is_help=True, help="Reproduce the paper's figures and tables.")


def _run(
    name: str,
    quick: bool,
    full: bool,
    units: list[str] | None,
    rows: int | None,
    out: Path,
    threads: int,
    data: Path | None,
    fetch: bool = False,
) -> None:
    import torch

    from scanline.model.data.published_sets import load_dataset
    from scanline.model.paper.runner import EXPERIMENTS, run_units

    if quick and full:
        raise typer.BadParameter("choose one of --quick and --full")
    mode: Literal["quick", "default", "full"] = "quick" if quick else "full" if full else "default"
    torch.set_num_threads(threads)
    if fetch:
        for split in ("train", "test"):
            load_dataset(DATASETS[name], split, data, download=True)
    experiment = EXPERIMENTS[name]
    reports = run_units(experiment, out, units or (), mode=mode, data_dir=data, rows=rows)
    measured = {key: row for report in reports for key, row in report.rows.items()}
    typer.echo(experiment.table(measured))
    for report in reports:
        typer.echo(f"{'finished' if report.complete else 'unfinished'}: {report.path}")


def _experiment_command(name: str, title: str) -> Callable[..., None]:
    def with_data(
        quick: Quick = False,
        full: Full = False,
        unit: Units = None,
        rows: RowCount = None,
        out: Folder = FOLDER,
        threads: Threads = 1,
        data_dir: DataDir = None,
        download: Download = False,
    ) -> None:
        _run(name, quick, full, unit, rows, out, threads, data_dir, download)

    def without_data(
        quick: Quick = False,
        full: Full = False,
        unit: Units = None,
        rows: RowCount = None,
        out: Folder = FOLDER,
        threads: Threads = 1,
    ) -> None:
        _run(name, quick, full, unit, rows, out, threads, None)

    command: Callable[..., None] = with_data if name in DATASETS else without_data
    command.__doc__ = f"{title}. {REPORTS}"
    return command


for name, title in {
    "figure1": "Time and memory of attention by sequence length",
    "figure2": "Training on the copy task, by kind of attention",
    "table1": "MNIST: bits/dim by kind of attention",
    "table2": "CIFAR-10: bits/dim by kind of attention",
    "supplement": "Images/s by batch size, and seconds per image",
}.items():
    paper.command(name)(_experiment_command(name, title))


@paper.command(help=f"Speech recognition: phoneme error rate and time per epoch. {REPORTS}")
def table3(
    quick: Quick = False,
    full: Full = False,
    unit: Units = None,
    rows: RowCount = None,
    out: Folder = FOLDER,
    threads: Threads = 1,
    speech: Speech = None,
) -> None:
    _run("table3", quick, full, unit, rows, out, threads, speech)


@paper.command()
def page(
    results: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = FOLDER,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Page to write. Default: paper.md in that folder."),
    ] = None,
) -> None:
    """Write plots, and a page that compares the results with the paper's claims."""
    from scanline.model.paper.page import write_page

    to = to or results / "paper.md"
    write_page(results, to)
    typer.echo(str(to))
