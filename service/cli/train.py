"""``scanline train``: training of a model."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from scanline.kernels.constants import ATTENTION_KINDS, FEATURE_MAPS
from scanline.model.config import PRESETS
from scanline.model.data.catalog import one_of
from scanline.model.training.config import TrainingConfig
from scanline.service.cli.options import (
    DataDir,
    Download,
    Grey,
    ImagesDir,
    Size,
    given_options,
    limit_seed,
)

DEFAULTS = TrainingConfig()


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None, typer.Argument(help=f"Network and its data set: {one_of(PRESETS)}.")
    ] = None,
    images: ImagesDir = None,
    size: Size = None,
    grey: Grey = False,
    hold_out: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Images kept for validation; 0 trains on all. Default: a tenth, at most 1,000.",
            rich_help_panel="Data",
        ),
    ] = None,
    shift: Annotated[
        int,
        typer.Option(
            min=0, help="Largest random shift of an image, in pixels.", rich_help_panel="Data"
        ),
    ] = DEFAULTS.shift,
    mirror: Annotated[
        bool,
        typer.Option(
            "--mirror/--no-mirror",
            help="Mirror each image with probability 1/2.",
            rich_help_panel="Data",
        ),
    ] = DEFAULTS.mirror,
    dist_aug: Annotated[
        float,
        typer.Option(
            help="Share of images to turn or mirror; the network is told the orientation "
            "(DistAug).",
            rich_help_panel="Data",
        ),
    ] = DEFAULTS.dist_aug,
    data_dir: DataDir = None,
    download: Download = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run. Default: runs/NAME.", rich_help_panel="Run"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue the run in --out with its settings.",
            rich_help_panel="Run",
        ),
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start with the weights of this checkpoint; more --layers and --feed-forward "
            "features are allowed.",
            rich_help_panel="Run",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Number of training steps.", rich_help_panel="Run")
    ] = DEFAULTS.steps,
    batch: Annotated[
        int,
        typer.Option(min=1, help="Images per step, over all processes.", rich_help_panel="Run"),
    ] = DEFAULTS.batch,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            callback=limit_seed(63),
            help="Seed of the initial weights, the order of the images, and augmentation.",
            rich_help_panel="Run",
        ),
    ] = DEFAULTS.seed,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that share each batch. Default: one per core of a CPU.",
            rich_help_panel="Run",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Steps between checkpoints.", rich_help_panel="Run")
    ] = DEFAULTS.checkpoint_every,
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Steps between validations.", rich_help_panel="Run")
    ] = DEFAULTS.evaluate_every,
    precision: Annotated[
        str, typer.Option(help="auto, bf16 or fp32.", rich_help_panel="Run")
    ] = DEFAULTS.precision,
    learning_rate: Annotated[
        float,
        typer.Option(
            help="AdamW's learning rate, for all except the blocks' matrices.",
            rich_help_panel="Learning rates",
        ),
    ] = DEFAULTS.learning_rate,
    muon_rate: Annotated[
        float,
        typer.Option(
            help="Muon's learning rate, for the blocks' matrices.",
            rich_help_panel="Learning rates",
        ),
    ] = DEFAULTS.muon_rate,
    edge_rate: Annotated[
        float | None,
        typer.Option(
            help="AdamW's learning rate for the linear input and output layers. Default: "
            "--learning-rate.",
            rich_help_panel="Learning rates",
        ),
    ] = DEFAULTS.edge_rate,
    decay: Annotated[
        float,
        typer.Option(
            help="Learning-rate decay: the share of the steps over which the rates fall to 0.",
            rich_help_panel="Learning rates",
        ),
    ] = DEFAULTS.decay,
    layers: Annotated[
        int | None,
        typer.Option(help="Number of layers. Default: the preset's.", rich_help_panel="Network"),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            help="Features per layer. Sets --feed-forward to four times as many.",
            rich_help_panel="Network",
        ),
    ] = None,
    feed_forward: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Hidden features of the feed-forward networks.",
            rich_help_panel="Network",
        ),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(help="Attention heads per layer.", rich_help_panel="Network"),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help=f"{one_of(ATTENTION_KINDS)}. Default: the preset's.",
            rich_help_panel="Network",
        ),
    ] = None,
    feature_map: Annotated[
        str | None,
        typer.Option(
            help=f"Feature map of linear attention: {one_of(FEATURE_MAPS)}.",
            rich_help_panel="Network",
        ),
    ] = None,
    lsh_chunk: Annotated[
        int | None,
        typer.Option(
            help="Positions per chunk of LSH attention. Default: 32.", rich_help_panel="Network"
        ),
    ] = None,
    lsh_combine: Annotated[
        str | None,
        typer.Option(
            help="How LSH attention combines its rounds: union (Reformer) or mean (the paper's "
            "authors). Default: union.",
            rich_help_panel="Network",
        ),
    ] = None,
) -> None:
    """Train a model on a data set or a folder of pictures; --resume continues after Ctrl-C."""
    from scanline.model.training.datasets import DataSource
    from scanline.model.training.network_choice import NetworkOverrides
    from scanline.model.training.setup import RunOptions, prepare_run
    from scanline.service.cli.run_pictures import save_progress

    # Options with the name of a setting reach the run only if the user gave them.
    names = {field.name for field in fields(TrainingConfig)}
    settings = {name: value for name, value in given_options(context).items() if name in names}
    overrides = NetworkOverrides(
        layers=layers, width=width, feed_forward=feed_forward, heads=heads, attention=attention,
        feature_map=feature_map, lsh_chunk=lsh_chunk, lsh_combine=lsh_combine,
    )  # fmt: skip
    options = RunOptions(
        source=DataSource(dataset, images, data_dir, download),
        size=size,
        grey=grey,
        out=out,
        resume=resume,
        start_from=start_from,
        settings=settings,
        overrides=overrides,
        processes=processes,
        hold_out=hold_out,
    )
    if summary := prepare_run(options).execute(save_progress):
        typer.echo(summary)
