"""``scanline paper``: reproduction of the paper's figures and tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from scanline.service.cli.options import DataDir, Download

Quick = Annotated[
    bool,
    typer.Option("--quick", help="Take minutes: smaller networks, shorter sequences, less time."),
]
Folder = Annotated[
    Path, typer.Option("--out", help="Folder of the results. A run continues those that are there.")
]
Threads = Annotated[
    int,
    typer.Option(min=1, help="CPU threads. With one, other programs do not distort the timings."),
]
Speech = Annotated[
    Path | None,
    typer.Option(
        "--speech",
        help="Folder of speech with the subfolders train and test. Each utterance is NAME.npy "
        "(float features, frames × features) and NAME.txt (phonemes separated by spaces). Default: "
        "digits spoken by espeak-ng, which must be installed.",
    ),
]
FOLDER = Path("runs/paper")
DATASETS = {"table1": "mnist", "table2": "cifar10"}  # experiments on images, with their data sets

paper = typer.Typer(no_args_is_help=True, help="Reproduce the paper's figures and tables.")


def _run(
    name: str, quick: bool, out: Path, threads: int, data: Path | None, fetch: bool = False
) -> None:
    import torch

    from scanline.model.data.dataset import load_dataset
    from scanline.model.paper.runner import EXPERIMENTS, run_experiment

    torch.set_num_threads(threads)
    if fetch:
        for split in ("train", "test"):
            load_dataset(DATASETS[name], split, data, download=True)
    experiment = EXPERIMENTS[name]
    report = run_experiment(experiment, out, quick=quick, data_dir=data)
    typer.echo(experiment.table(report.rows))
    experiment.save_plot(report.rows, out / f"{name}.png")
    typer.echo(f"\nwritten to {report.path} and {name}.png in the same folder")


def _experiment_command(name: str, title: str) -> Callable[..., None]:
    def with_data(
        quick: Quick = False,
        out: Folder = FOLDER,
        threads: Threads = 1,
        data_dir: DataDir = None,
        download: Download = False,
    ) -> None:
        _run(name, quick, out, threads, data_dir, download)

    def without_data(quick: Quick = False, out: Folder = FOLDER, threads: Threads = 1) -> None:
        _run(name, quick, out, threads, None)

    command: Callable[..., None] = with_data if name in DATASETS else without_data
    command.__doc__ = f"{title}. Writes a table, a plot and a JSON file; continues an earlier run."
    return command


for name, title in {
    "figure1": "Time and memory of attention by sequence length",
    "figure2": "Training on the copy task, by kind of attention",
    "table1": "MNIST: bits/dim and images/s by kind of attention",
    "table2": "CIFAR-10: bits/dim and images/s by kind of attention",
    "supplement": "Seconds per image, and images/s by batch size",
}.items():
    paper.command(name)(_experiment_command(name, title))


@paper.command(
    help="Speech recognition: phoneme error rate and time per epoch. Writes a table, a plot and a "
    "JSON file; continues an earlier run."
)
def table3(
    quick: Quick = False, out: Folder = FOLDER, threads: Threads = 1, speech: Speech = None
) -> None:
    _run("table3", quick, out, threads, speech)


@paper.command()
def page(
    results: Annotated[Path, typer.Option("--results", help="Folder of the results.")] = FOLDER,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Page to write. Default: paper.md in that folder."),
    ] = None,
) -> None:
    """Write a page that compares the results with the paper's claims and figures."""
    from scanline.model.paper.page import write_page

    to = to or results / "paper.md"
    write_page(results, to)
    typer.echo(str(to))
