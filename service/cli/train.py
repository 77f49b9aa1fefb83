"""``scanline train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME if none.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out as it began.")
    ] = False,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", help="Begin with this checkpoint, its layers or more."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Batches to train on.")] = 20_000,
    batch: Annotated[int, typer.Option(min=1, help="Images a step, over all processes.")] = 16,
    learning_rate: Annotated[
        float, typer.Option(help="AdamW's, for all but the blocks' matrices.")
    ] = 2e-3,
    muon_rate: Annotated[float, typer.Option(help="Muon's, for the blocks' matrices.")] = 0.02,
    edge_rate: Annotated[
        float | None, typer.Option(help="AdamW's for the maps in front of and behind the blocks.")
    ] = None,
    decay: Annotated[float, typer.Option(help="Share of the steps that cool down.")] = 0.4,
    shift: Annotated[
        int, typer.Option(min=0, help="Pixels an image may be moved each way while training.")
    ] = 0,
    mirror: Annotated[
        bool,
        typer.Option("--mirror/--no-mirror", help="Show every second image in a mirror."),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            max=2**63 - 1,
            help="Of the first weights, the images' order, and all chance.",
        ),
    ] = 0,
    layers: Annotated[int | None, typer.Option(help="Change the preset's n_layers.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Change d_model; d_ff is four times it.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Change n_heads.")] = None,
    attention: Annotated[
        str | None, typer.Option(help="linear, softmax, lsh-1 or lsh-4; the preset's if none.")
    ] = None,
    feature_map: Annotated[
        str | None, typer.Option(help="Of linear attention: elu, relu, polynomial or random.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="That share each batch; if none, one a core of a CPU."),
    ] = None,
    hold_out: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Images kept for validation; a tenth, 1,000 at most, if none. 0 trains on all.",
        ),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between two saves.")] = 250,
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Steps between two validations.")
    ] = 1000,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    compile_: Annotated[
        bool,
        typer.Option(
            "--compile/--no-compile", help="Compile the network first; takes about a minute."
        ),
    ] = False,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Train a model on MNIST, CIFAR-10 or a folder of pictures; Ctrl-C stops, --resume goes on."""
    from dataclasses import replace

    from scanline.model.checkpoint import load_facts, read_config
    from scanline.model.config import PRESETS
    from scanline.model.training.config import TrainingConfig, check_shift
    from scanline.model.training.datasets import (
        DEFAULT_SIZE,
        check_data_options,
        load_training_data,
    )
    from scanline.model.training.distributed import choose_process_count
    from scanline.model.training.resume import check_resumable, read_saved_run
    from scanline.model.training.run import (
        NetworkOverrides,
        Run,
        check_resume_options,
        check_same_architecture,
        choose_network,
        choose_run_folder,
    )
    from scanline.service.cli.grid import save_progress

    asked: dict[str, Any] = {
        "steps": steps, "batch": batch, "seed": seed, "learning_rate": learning_rate,
        "muon_rate": muon_rate, "edge_rate": edge_rate, "decay": decay, "shift": shift,
        "mirror": mirror, "precision": precision,
        "checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every, "compile": compile_,
    }  # fmt: skip
    folder = choose_run_folder(out, dataset, images, resume)
    resumed = None
    if resume:
        resumed, training_config, held_out, saved = read_saved_run(folder)
        check_resume_options(resumed, size, grey, start_from, hold_out, held_out)
        training_config = replace(
            training_config, **{k: v for k, v in asked.items() if _given(context, k)}
        )
        hold_out = held_out if hold_out is None else hold_out
    else:
        training_config = TrainingConfig(**asked)
    # Say what is wrong before any data is read.
    check_data_options(dataset, images, size, grey, data_dir, download)
    choose_process_count(training_config.batch, processes)
    before = resumed or (read_config(start_from) if start_from else None)
    if images is not None and before is not None:
        size, grey = size or before.height, grey or before.channels == 1
    overrides = NetworkOverrides(
        layers=layers, width=width, heads=heads, attention=attention, feature_map=feature_map
    )
    preset = PRESETS[dataset or "cifar10"]
    network = overrides.apply(before or preset)
    check_shift(training_config.shift, preset.height if images is None else size or DEFAULT_SIZE)
    if resumed is not None:
        check_same_architecture(dataset, resumed)
        check_resumable(folder / "training.pt", saved, network, training_config)
    start = load_facts(start_from) if start_from else None
    data, validation = load_training_data(
        dataset, images, size, grey, hold_out, data_dir, download, start
    )
    network = choose_network(dataset, data, overrides, start_from=start_from, resumed=resumed)
    run = Run(
        network=network,
        training_config=training_config,
        folder=folder,
        resume=resume,
        start_from=start_from,
    )
    if said := run.execute(data, validation, save_progress, processes):
        typer.echo(said)


def _given(context: typer.Context, field: str) -> bool:
    """Whether an option of the training config was given, and is no default."""
    source = context.get_parameter_source("compile_" if field == "compile" else field)
    return source is not None and source.name == "COMMANDLINE"
