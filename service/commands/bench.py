"""``scanline bench``."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated, Literal

import typer

from scanline.service.commands.options import Threads, WeightsDir

SECONDS, REPEATS = 1.0, 5


def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Shipped models or presets, or of --weights; if none, the paper's and the shipped "
            "ones (--http: mnist-paper; with --pretend mnist)."
        ),
    ] = None,
    weights: WeightsDir = None,
    backend: Annotated[
        Literal["all", "native", "reference"], typer.Option(help="Only this one.")
    ] = "all",
    slots: Annotated[list[int] | None, typer.Option(min=1, help="Images at once.")] = None,
    threads: Threads = None,
    isa: Annotated[
        str | None,
        typer.Option(
            help="Instructions of the native backend: a lesser CPU's, to see its speed (amx, "
            "avx512bf16, avx512vnni, avx512, avxvnni, avx2, neonbf16, neondot or portable)."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Of the native backend: float32, bf16, int16 or int8; the model's own if none."
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="What to time; cuda is the triton backend.")
    ] = "cpu",
    seconds: Annotated[
        float | None, typer.Option(min=0.01, help=f"Of one run; {SECONDS:g} if none.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help=f"Runs, whose median counts; {REPEATS} if none.")
    ] = None,
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
    if not math.isfinite(seconds or 0) or not math.isfinite(pretend or 0):
        raise ValueError("--seconds and --pretend must be finite numbers")
    elsewhere = training or http or pretend or device != "cpu" or backend == "reference"
    if (isa or precision) and elsewhere:
        raise ValueError("--isa and --precision are for timing the native decoder alone")
    if training:
        from scanline.model.bench.training import run_training_bench

        others = http or pretend or peer or slots or seconds or weights
        if others or backend != "all" or device != "cpu":
            raise ValueError("--training goes with --threads and --repeats only")
        trained = run_training_bench(models or [], threads, repeats or REPEATS, progress=typer.echo)
        typer.echo(json.dumps(dataclasses.asdict(trained)))
        return
    from scanline.model.bench.models import find_models

    if device == "cuda":
        from scanline.model.bench import cuda as bench_cuda

        if http or pretend or peer or threads is not None or backend != "all":
            raise ValueError("--device cuda goes with --slots, --seconds and --repeats only")
        on_device = bench_cuda.run_bench(
            find_models(models or [], weights),
            slots=slots or bench_cuda.SLOTS,
            seconds=seconds or SECONDS,
            repeats=repeats or REPEATS,
            progress=typer.echo,
        )
        typer.echo(json.dumps(dataclasses.asdict(on_device)))
        return
    if pretend is not None:
        from scanline.service.bench import costs

        beside = peer or threads is not None or repeats or backend != "all"
        if not http or beside or len(slots or []) > 1:
            raise ValueError("--pretend goes with --http, --seconds and one --slots")
        (count,) = slots or [costs.SLOTS]
        for checkpoint in find_models(models or [], weights, ["mnist"]):
            cost = costs.bench_costs(checkpoint, pretend, count, seconds or SECONDS)
            typer.echo(costs.table(cost))
            typer.echo(json.dumps(cost))
        return
    if http:
        from scanline.service.bench.shares import bench_service, table

        if peer or slots or seconds or threads is not None:
            raise ValueError("--http goes with --backend and --repeats, or with --pretend")
        for checkpoint in find_models(models or [], weights, ["mnist-paper"]):
            result = bench_service(
                checkpoint, "auto" if backend == "all" else backend, repeats=repeats or REPEATS
            )
            typer.echo(table(result))
            typer.echo(json.dumps(result))
        return
    from scanline.model.bench.cpu import BACKENDS, SLOTS, run_bench

    report = run_bench(
        find_models(models or [], weights),
        backends=BACKENDS if backend == "all" else [backend],
        slots=slots or SLOTS,
        threads=threads,
        isa=isa,
        precision=precision,
        seconds=seconds or SECONDS,
        repeats=repeats or REPEATS,
        peer=peer,
        progress=typer.echo,
    )
    typer.echo(json.dumps(dataclasses.asdict(report)))
    if not report.timings:
        raise ValueError("nothing could be timed; why is said above")
