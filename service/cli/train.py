"""``scanline train``: training of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scanline.service.cli.options import DataDir, Download, Grey, ImagesDir, Size


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None, typer.Argument(help="mnist, cifar10, mnist-paper or cifar10-paper.")
    ] = None,
    images: ImagesDir = None,
    size: Size = None,
    grey: Grey = False,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/NAME.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out with its settings.")
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Start with the weights of this checkpoint; more --layers and --feed-forward "
            "features are allowed.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 20_000,
    batch: Annotated[int, typer.Option(min=1, help="Images per step, over all processes.")] = 16,
    learning_rate: Annotated[
        float, typer.Option(help="AdamW's learning rate, for all except the blocks' matrices.")
    ] = 2e-3,
    muon_rate: Annotated[
        float, typer.Option(help="Muon's learning rate, for the blocks' matrices.")
    ] = 0.02,
    edge_rate: Annotated[
        float | None,
        typer.Option(
            help="AdamW's learning rate for the linear input and output layers. Default: "
            "--learning-rate."
        ),
    ] = None,
    decay: Annotated[
        float, typer.Option(help="Share of the steps over which the learning rates fall to 0.")
    ] = 0.4,
    shift: Annotated[
        int, typer.Option(min=0, help="Largest random shift of an image, in pixels.")
    ] = 0,
    mirror: Annotated[
        bool,
        typer.Option("--mirror/--no-mirror", help="Mirror each image with probability 1/2."),
    ] = False,
    dist_aug: Annotated[
        float,
        typer.Option(
            help="Share of images to turn or mirror; the network is told the orientation (DistAug)."
        ),
    ] = 0.0,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**63 - 1,
            help="Seed of the initial weights, the order of the images, and augmentation.",
        ),
    ] = 0,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers. Default: the preset's.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Features per layer. Sets --feed-forward to four times as many."),
    ] = None,
    feed_forward: Annotated[
        int | None, typer.Option(min=1, help="Hidden features of the feed-forward networks.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads per layer.")] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="linear, softmax, lsh-1, lsh-4 or lsh-8. Default: the preset's."),
    ] = None,
    feature_map: Annotated[
        str | None,
        typer.Option(
            help="Feature map of linear attention: elu, relu, polynomial, inhomogeneous, random or "
            "fourier."
        ),
    ] = None,
    lsh_chunk: Annotated[
        int | None, typer.Option(help="Positions per chunk of LSH attention. Default: 32.")
    ] = None,
    lsh_combine: Annotated[
        str | None,
        typer.Option(
            help="How LSH attention combines its rounds: union (Reformer) or mean (the paper's "
            "authors). Default: union."
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes that share each batch. Default: one per core of a CPU."
        ),
    ] = None,
    hold_out: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Images kept for validation; 0 trains on all. Default: a tenth, at most 1,000.",
        ),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 250,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Steps between validations.")] = 1000,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Train a model on MNIST, CIFAR-10 or a folder of pictures; --resume continues after Ctrl-C."""
    from scanline.model.training.datasets import DataSource
    from scanline.model.training.network_choice import NetworkOverrides
    from scanline.model.training.setup import RunOptions, prepare_run
    from scanline.service.cli.run_pictures import save_progress

    settings = {
        "steps": steps, "batch": batch, "seed": seed, "learning_rate": learning_rate,
        "muon_rate": muon_rate, "edge_rate": edge_rate, "decay": decay, "shift": shift,
        "mirror": mirror, "dist_aug": dist_aug, "precision": precision,
        "checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every,
    }  # fmt: skip
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
        explicit_settings=frozenset(name for name in settings if _is_explicit(context, name)),
        overrides=overrides,
        processes=processes,
        hold_out=hold_out,
    )
    prepared = prepare_run(options)
    if summary := prepared.run.execute(
        prepared.data, prepared.validation, save_progress, processes
    ):
        typer.echo(summary)


def _is_explicit(context: typer.Context, setting: str) -> bool:
    """Return True if an option was given on the command line, instead of taking its default."""
    source = context.get_parameter_source(setting)
    return source is not None and source.name == "COMMANDLINE"
