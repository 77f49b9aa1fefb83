"""The command line: serve, sample, complete, train, evaluate, import and bench."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

if TYPE_CHECKING:
    from scanline.model.checkpoint import Checkpoint

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Draw images pixel by pixel with a linear transformer run as an RNN.",
)


def _number(value: float) -> float:
    if value != value:  # NaN is below no bound and above none
        raise typer.BadParameter("NaN is no temperature")
    return value


ModelName = Annotated[
    str | None,
    typer.Option("--model", help="A checkpoint's name; of the fewest steps if none."),
]
WeightsDir = Annotated[
    Path | None, typer.Option("--weights", help="Folder of checkpoints; the shipped ones if none.")
]
Backend = Annotated[str, typer.Option(help="auto, reference, native or triton.")]
Seed = Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Image j has seed + j.")]
Temperature = Annotated[
    float,
    typer.Option(min=0.0, max=2.0, callback=_number, help="1 is the model as it is, 0 likeliest."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores if left out.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Where data sets are; also SCANLINE_DATA_DIR.")
]
ImagesDir = Annotated[
    Path | None, typer.Option("--images", help="A folder of pictures; its sub-folders are classes.")
]
Size = Annotated[int, typer.Option(min=2, max=256, help="Pixels a side that --images get.")]
Grey = Annotated[bool, typer.Option("--grey", help="Make --images grey.")]
Download = Annotated[bool, typer.Option(help="Fetch the data set if it is not there.")]


def _open_model(folder: Path | None, name: str | None) -> Checkpoint:
    from scanline.model.checkpoint import SHIPPED, load_checkpoints

    return load_checkpoints(folder or SHIPPED, [name] if name else [])[0]


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    weights: WeightsDir = None,
    models: Annotated[
        str | None, typer.Option(help="Serve only these, comma-separated, the default first.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, reference, native or triton.")] = None,
    slots: Annotated[int | None, typer.Option(help="Images drawn at once, a model.")] = None,
    threads: Threads = None,
    max_waiting: Annotated[int | None, typer.Option(help="Images that may wait.")] = None,
    drain_seconds: Annotated[float | None, typer.Option(help="Grace after SIGTERM.")] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve models over HTTP; every setting is a SCANLINE_* variable too (see README)."""
    import uvicorn

    from scanline.model.checkpoint import load_checkpoints
    from scanline.service.app import create_app
    from scanline.service.logs import set_up_logs
    from scanline.service.server import FLUSH_SECONDS, Process, Scanline
    from scanline.service.settings import Settings

    given = {name: value for name, value in locals().items() if name in Settings.model_fields}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    set_up_logs(settings.log_format, settings.log_level)
    # The engine's thread wants the interpreter back for microseconds between two native steps;
    # by default a busy event loop would keep it waiting 5 ms, longer than many steps take.
    sys.setswitchinterval(0.0005)
    if settings.api_key is None and "SCANLINE_API_KEY" in os.environ:
        logging.getLogger("scanline").warning("SCANLINE_API_KEY is empty: anyone may call /v1")
    checkpoints = load_checkpoints(settings.weights, settings.models)
    scanline = Scanline(settings)
    config = uvicorn.Config(
        create_app(scanline, lambda: scanline.open(checkpoints)),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    Process(config, scanline).run()
    if scanline.failure is not None:
        raise ValueError(scanline.failure)


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("samples.png"),
    n: Annotated[int, typer.Option("-n", min=1, help="Images to draw.")] = 16,
    model: ModelName = None,
    label: Annotated[str | None, typer.Option(help="A class, by name or number.")] = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    scale: Annotated[int, typer.Option(min=1, max=32, help="Enlarge by this factor.")] = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Draw images without a server, and write them as one PNG grid."""
    from scanline.service.commands.drawing import draw_grid
    from scanline.service.generation import Request

    checkpoint = _open_model(weights, model)
    number = checkpoint.model.config.class_number(label)
    request = Request(n=n, seed=seed, label=number, temperature=temperature)
    draw_grid(checkpoint, request, out, scale, backend, threads)
    typer.echo(f"wrote {out}")


@app.command()
def complete(
    picture: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What to complete.")],
    out: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("completions.png"),
    rows: Annotated[
        int | None, typer.Option(help="Known rows from the top; if none, transparent is unknown.")
    ] = None,
    fit: Annotated[
        Literal["exact", "cover", "contain"], typer.Option(help="For a picture of another size.")
    ] = "cover",
    n: Annotated[int, typer.Option("-n", min=1, help="Ways to complete it.")] = 4,
    model: ModelName = None,
    label: Annotated[str | None, typer.Option(help="A class, by name or number.")] = None,
    seed: Seed = 0,
    temperature: Temperature = 1.0,
    scale: Annotated[int, typer.Option(min=1, max=32, help="Enlarge by this factor.")] = 4,
    weights: WeightsDir = None,
    backend: Backend = "auto",
    threads: Threads = None,
) -> None:
    """Complete a picture several ways without a server, and write them as one PNG grid."""
    from scanline.service.commands.drawing import draw_grid
    from scanline.service.generation import Request
    from scanline.service.pictures import read_upload

    checkpoint = _open_model(weights, model)
    config = checkpoint.model.config
    with picture.open("rb") as file:
        canvas, known = read_upload(file, None, rows, fit, config)
    request = Request(
        n=n,
        seed=seed,
        label=config.class_number(label),
        temperature=temperature,
        canvas=canvas,
        known=known,
    )
    draw_grid(checkpoint, request, out, scale, backend, threads)
    typer.echo(f"wrote {out}")


@app.command()
def train(
    dataset: Annotated[
        str | None, typer.Argument(help="mnist, cifar10, mnist-paper or cifar10-paper.")
    ] = None,
    images: ImagesDir = None,
    size: Size = 28,
    grey: Grey = False,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME if none.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Begin with the weights of this checkpoint.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1)] = 20_000,
    batch: Annotated[int, typer.Option(min=1, help="Images a step, over all processes.")] = 16,
    learning_rate: Annotated[float, typer.Option()] = 2e-3,
    muon_rate: Annotated[float, typer.Option(help="Step size of the blocks' matrices.")] = 0.02,
    decay: Annotated[float, typer.Option(help="Share of the steps that cool down.")] = 0.4,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    layers: Annotated[int | None, typer.Option(help="Change the preset's n_layers.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Change d_model; d_ff is four times it.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Change n_heads.")] = None,
    hold_out: Annotated[
        int, typer.Option(min=0, help="Training images kept for validation; 0 trains on all.")
    ] = 1000,
    checkpoint_every: Annotated[int, typer.Option(min=1)] = 250,
    evaluate_every: Annotated[int, typer.Option(min=1)] = 1000,
    precision: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile the network first; takes about a minute.")
    ] = False,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Train a model on MNIST, CIFAR-10 or a folder of pictures; Ctrl-C stops, --resume goes on."""
    from scanline.model.recipe import TrainingConfig
    from scanline.model.training import Stop, Trainer, processes
    from scanline.service.commands.drawing import training_config, training_data, write_samples

    data, validation = training_data(dataset, images, size, grey, hold_out, data_dir, download)
    name = dataset or (images.name if images else "")
    changes = {"n_layers": layers, "d_model": width, "n_heads": heads}
    if width is not None:
        changes["d_ff"] = 4 * width
    model = training_config(dataset, data, {k: v for k, v in changes.items() if v is not None})
    if resume and start_from:
        raise ValueError("--from begins a run, which --resume goes on with: leave one of them out")
    folder = out or Path("runs") / name
    if (folder / "training.pt").exists() != resume:
        raise ValueError(
            f"there is no run to resume in {folder}" if resume else
            f"{folder} already holds a run: add --resume to go on, or give another --out"
        )  # fmt: skip
    config = TrainingConfig(
        steps=steps,
        batch=batch,
        seed=seed,
        learning_rate=learning_rate,
        muon_rate=muon_rate,
        decay=decay,
        checkpoint_every=checkpoint_every,
        evaluate_every=evaluate_every,
        precision=precision,
        compile=compile_,
    )
    with processes() as device, Stop().listening() as stop:
        trainer = Trainer(model, config, folder, device)
        if resume:
            trainer.resume()
        elif start_from:
            trainer.start_from(start_from)
        trainer.train(data, validation, stop, quiet=False, after_validation=write_samples)
        if trainer.rank == 0:
            where = f"{trainer.step:,} of {steps:,} steps; {trainer.weights}"
            typer.echo(f"stopped at {where}; --resume goes on" if stop.asked else f"done: {where}")


@app.command()
def evaluate(
    model: ModelName = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist or cifar10; by the model's name")
    ] = None,
    images: ImagesDir = None,
    label: Annotated[bool, typer.Option("--label", help="Give the true label too.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.")] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the figure into the checkpoint's metadata.")
    ] = False,
    weights: WeightsDir = None,
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Measure a model's exact bits/dim on a test set, with its standard error."""
    import torch
    from tqdm import tqdm

    from scanline.model.checkpoint import SHIPPED, save_checkpoint
    from scanline.model.data.folder import load_images
    from scanline.model.data.published import load_dataset
    from scanline.model.evaluation import evaluate as measure

    if record and limit:
        raise ValueError("--record is for the whole set: leave --limit out")
    checkpoint = _open_model(weights, model)
    config = checkpoint.model.config
    if images is not None:
        data = load_images(images, (config.height, config.width), config.channels == 1)
    else:
        known = "cifar10" if config.channels == 3 else "mnist"
        data = load_dataset(dataset or known, "test", data_dir, download=download)
    data = data.take(slice(limit)) if limit else data
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = checkpoint.model.to(device)
    with tqdm(total=len(data), unit="image", file=sys.stderr) as bar:
        result = measure(network, data, with_label=label, device=device, progress=bar.update)
    how = "with the true label" if label else "without a label"
    typer.echo(f"{checkpoint.name}: {result}, {how}" + (f" ({data.note})" if data.note else ""))
    if record:
        key = "test_with_label" if label else "test"
        figure = dataclasses.asdict(result) | {"data": data.name, "note": data.note}
        path = (weights or SHIPPED) / f"{checkpoint.name}.safetensors"
        save_checkpoint(path, network.cpu(), checkpoint.facts | {key: figure})


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A PyTorch checkpoint of the paper's authors.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    preset: Annotated[str, typer.Option(help="mnist-paper or cifar10-paper.")] = "mnist-paper",
    first_value: Annotated[
        int, typer.Option(min=0, max=255, help="Samples begin with it: theirs never model it.")
    ] = 0,
) -> None:
    """Turn a checkpoint of the paper's authors into one that can be served."""
    from scanline.model.checkpoint import import_paper_checkpoint, save_checkpoint

    if out.suffix != ".safetensors":
        raise ValueError(f"{out} must end in .safetensors, or it would not be found to be served")
    checkpoint = import_paper_checkpoint(file, preset, first_value)
    save_checkpoint(out, checkpoint.model, checkpoint.facts)
    typer.echo(f"wrote {out}; serve it with: scanline serve --weights {out.parent}")


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(help="Shipped models or presets; all if none.")
    ] = None,
    backend: Annotated[
        Literal["all", "native", "reference"], typer.Option(help="Only this one.")
    ] = "all",
    slots: Annotated[list[int] | None, typer.Option(min=1, help="Images at once.")] = None,
    threads: Threads = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="What to time; cuda is the triton backend.")
    ] = "cpu",
    seconds: Annotated[float, typer.Option(min=0.01, help="Of one run.")] = 1.0,
    repeats: Annotated[int, typer.Option(min=1, help="Runs, of which the median counts.")] = 5,
    peer: Annotated[bool, typer.Option("--peer", help="Time fast-transformers too.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Time the service beside its decoder instead.")
    ] = False,
) -> None:
    """Time every decoder that runs here, or the service; prints a table and one JSON line."""
    if device == "cuda":
        from scanline.model.bench import cuda as bench_cuda

        if http or peer or threads is not None or backend != "all":
            raise ValueError("--http, --peer, --threads and --backend are not for --device cuda")
        on_device = bench_cuda.run_bench(
            models or [],
            slots=slots or bench_cuda.SLOTS,
            seconds=seconds,
            repeats=repeats,
            progress=typer.echo,
        )
        typer.echo(json.dumps(dataclasses.asdict(on_device)))
        return
    if http:
        from scanline.service.commands.http_bench import bench_service, table

        for name in models or ["mnist-paper"]:
            result = bench_service(name, "auto" if backend == "all" else backend, repeats=repeats)
            typer.echo(table(result))
            typer.echo(json.dumps(result))
        return
    from scanline.model.bench.cpu import BACKENDS, SLOTS, run_bench

    report = run_bench(
        models or [],
        backends=BACKENDS if backend == "all" else [backend],
        slots=slots or SLOTS,
        threads=threads,
        seconds=seconds,
        repeats=repeats,
        peer=peer,
        progress=typer.echo,
    )
    typer.echo(json.dumps(dataclasses.asdict(report)))


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; whatever a user can mend ends it with a sentence and status 1."""
    try:
        app(args=arguments)
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            _complain(f"SCANLINE_{name.upper()}: {problem['msg']}" if name else problem["msg"])
        sys.exit(1)
    except (ValueError, RuntimeError, FloatingPointError, OSError) as error:
        logging.getLogger("scanline").debug("failed", exc_info=True)
        _complain(str(error))
        sys.exit(1)


def _complain(message: str) -> None:
    typer.echo(f"scanline: {message}", err=True)
