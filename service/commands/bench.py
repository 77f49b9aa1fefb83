"""``scanline bench``."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Literal

import typer

from scanline.service.commands.options import Threads


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
    pretend: Annotated[
        float | None,
        typer.Option(min=1, help="With --http: of a decoder that draws so many images a second."),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Time training steps of presets instead.")
    ] = False,
) -> None:
    """Time every decoder that runs here, or the service; prints a table and one JSON line."""
    if training:
        from scanline.model.bench.training import run_training_bench

        if http or peer or slots or backend != "all" or device != "cpu":
            raise ValueError("--training goes with --threads and --repeats only")
        trained = run_training_bench(models or [], threads, repeats, progress=typer.echo)
        typer.echo(json.dumps(dataclasses.asdict(trained)))
        return
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
    if pretend is not None:
        from scanline.service.bench import costs

        if not http or peer or threads is not None or backend != "all" or len(slots or []) > 1:
            raise ValueError("--pretend goes with --http, --seconds and one --slots")
        for name in models or ["mnist"]:
            cost = costs.bench_costs(name, pretend, (slots or [costs.SLOTS])[0], seconds)
            typer.echo(costs.table(cost))
            typer.echo(json.dumps(cost))
        return
    if http:
        from scanline.service.bench.shares import bench_service, table

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
