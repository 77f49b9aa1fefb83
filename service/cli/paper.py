"""``scanline paper``: the paper's figures and tables, run again on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from scanline.service.cli.options import DataDir, Download

Quick = Annotated[
    bool, typer.Option("--quick", help="Minutes: smaller networks, shorter lengths, less time.")
]
Folder = Annotated[Path, typer.Option("--out", help="Where the results are kept, and gone on.")]
Threads = Annotated[
    int, typer.Option(min=1, help="CPU threads; on one, other programs do not lengthen the times.")
]
Speech = Annotated[
    Path | None,
    typer.Option(
        "--speech",
        help="A folder of speech: train and test, and in them NAME.npy (float features, frames × "
        "features) and NAME.txt (phonemes, spaces between) of each utterance. Without one, digits "
        "that espeak-ng speaks, which must be installed.",
    ),
]
FOLDER = Path("runs/paper")
READING = {"table1": "mnist", "table2": "cifar10"}  # published data sets

paper = typer.Typer(no_args_is_help=True, help="Run the paper's figures and tables again.")


def _run(
    name: str, quick: bool, out: Path, threads: int, data: Path | None, fetch: bool = False
) -> None:
    import torch

    from scanline.model.data.dataset import load_dataset
    from scanline.model.paper.runner import EXPERIMENTS, run_experiment

    torch.set_num_threads(threads)
    if fetch:
        for split in ("train", "test"):
            load_dataset(READING[name], split, data, download=True)
    experiment = EXPERIMENTS[name]
    report = run_experiment(experiment, out, quick=quick, data_dir=data)
    typer.echo(experiment.table(report.rows))
    experiment.save_plot(report.rows, out / f"{name}.png")
    typer.echo(f"\n{report.path} and {name}.png beside it")


def _experiment(name: str, what: str) -> Callable[..., None]:
    def of_images(
        quick: Quick = False,
        out: Folder = FOLDER,
        threads: Threads = 1,
        data_dir: DataDir = None,
        download: Download = False,
    ) -> None:
        _run(name, quick, out, threads, data_dir, download)

    def of_nothing(quick: Quick = False, out: Folder = FOLDER, threads: Threads = 1) -> None:
        _run(name, quick, out, threads, None)

    command: Callable[..., None] = of_images if name in READING else of_nothing
    command.__doc__ = f"{what}; a table, a plot and a JSON file. Run again, it goes on."
    return command


for name, what in {
    "figure1": "Time and memory of attention by the length",
    "figure2": "Learning to copy, by each kind of attention",
    "table1": "MNIST: bits/dim and images/s of each kind",
    "table2": "CIFAR-10: bits/dim and images/s of each kind",
    "supplement": "Seconds for one image, and images/s by the batch's size",
}.items():
    paper.command(name)(_experiment(name, what))


@paper.command(
    help="Speech, by default digits that espeak-ng speaks: phonemes wrong and time an epoch; a "
    "table, a plot and a JSON file. Run again, it goes on."
)
def table3(
    quick: Quick = False, out: Folder = FOLDER, threads: Threads = 1, speech: Speech = None
) -> None:
    _run("table3", quick, out, threads, speech)


@paper.command()
def page(
    results: Annotated[Path, typer.Option("--results", help="A folder of results.")] = FOLDER,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="The page to write; paper.md in that folder if none."),
    ] = None,
) -> None:
    """Write the page that sets the paper's claims and figures beside the results."""
    from scanline.model.paper.page import write_page

    to = to or results / "paper.md"
    write_page(results, to)
    typer.echo(str(to))
