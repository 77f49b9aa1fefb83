"""``scanline bench``: timing of decoders, training steps, and the HTTP service."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from scanline.service.cli.options import Threads, WeightsDir, check_compatible, given_flags


def bench(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Shipped models, presets, or models in --weights. Default: the paper's and the "
            "shipped ones (--http: mnist-paper, with --pretend: mnist)."
        ),
    ] = None,
    weights: WeightsDir = None,
    backend: Annotated[
        Literal["all", "native", "reference"], typer.Option(help="Time only this backend.")
    ] = "all",
    slots: Annotated[list[int] | None, typer.Option(min=1, help="Batch sizes.")] = None,
    threads: Threads = None,
    isa: Annotated[
        str | None,
        typer.Option(
            help="Instruction set of the native backend, to see the speed of a lesser CPU: amx, "
            "avx512bf16, avx512vnni, avx512, avxvnni, avx2, neonbf16, neondot or portable."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precision of the native backend: float32, bf16, int16, int8 or int10. Default: "
            "the model's."
        ),
    ] = None,
    device: Annotated[
        Literal["cpu", "cuda"], typer.Option(help="Device to time; cuda is the triton backend.")
    ] = "cpu",
    seconds: Annotated[float, typer.Option(min=0.01, help="Duration of one run.")] = 1.0,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs; the median counts.")] = 5,
    peer: Annotated[bool, typer.Option("--peer", help="Time fast-transformers as well.")] = False,
    http: Annotated[
        bool, typer.Option("--http", help="Compare the HTTP service with its decoder instead.")
    ] = False,
    pretend: Annotated[
        float | None,
        typer.Option(
            min=1, help="With --http: simulate a decoder that draws this many images per second."
        ),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Time training steps of the presets instead.")
    ] = False,
) -> None:
    """Time the decoders, training or the service; print a table and one line of JSON."""
    if not math.isfinite(seconds) or not math.isfinite(pretend or 0):
        raise ValueError("--seconds and --pretend must be finite numbers")
    given = given_flags(context, ignored=["models"])
    names = models or []
    if training:
        check_compatible("--training", given, "--threads", "--repeats")
        _bench_training(names, threads, repeats)
    elif device == "cuda":
        check_compatible("--device cuda", given, "--weights", "--slots", "--seconds", "--repeats")
        _bench_device(names, weights, slots, seconds, repeats)
    elif pretend is not None:
        check_compatible("--pretend", given, "--http", "--weights", "--slots", "--seconds")
        if not http or len(slots or []) > 1:
            raise ValueError("--pretend needs --http, and at most one --slots")
        _bench_http_overhead(names, weights, slots, seconds, pretend)
    elif http:
        check_compatible("--http", given, "--weights", "--backend", "--repeats", "--pretend")
        _bench_service(names, weights, "auto" if backend == "all" else backend, repeats)
    else:
        if backend == "reference" and (isa or precision):
            raise ValueError("--isa and --precision need the native backend")
        from scanline.model.bench.cpu import BACKENDS, SLOTS, run_bench
        from scanline.model.bench.models import find_models

        report = run_bench(
            find_models(names, weights),
            backends=BACKENDS if backend == "all" else [backend],
            slots=slots or SLOTS,
            threads=threads,
            isa=isa,
            precision=precision,
            seconds=seconds,
            repeats=repeats,
            peer=peer,
            progress=typer.echo,
        )
        typer.echo(json.dumps(dataclasses.asdict(report)))
        if not report.timings:
            raise ValueError("nothing could be timed; see the reasons above")


def _bench_training(names: list[str], threads: int | None, repeats: int) -> None:
    from scanline.model.bench.training import run_training_bench

    report = run_training_bench(names, threads, repeats, progress=typer.echo)
    typer.echo(json.dumps(dataclasses.asdict(report)))


def _bench_device(
    names: list[str], weights: Path | None, slots: list[int] | None, seconds: float, repeats: int
) -> None:
    from scanline.model.bench.cuda import SLOTS, run_bench
    from scanline.model.bench.models import find_models

    report = run_bench(
        find_models(names, weights),
        slots=slots or SLOTS,
        seconds=seconds,
        repeats=repeats,
        progress=typer.echo,
    )
    typer.echo(json.dumps(dataclasses.asdict(report)))


def _bench_http_overhead(
    names: list[str], weights: Path | None, slots: list[int] | None, seconds: float, rate: float
) -> None:
    from scanline.model.bench.models import find_models
    from scanline.service.bench.http_overhead import SLOTS, measure_http_overhead, table

    (count,) = slots or [SLOTS]
    for checkpoint in find_models(names, weights, ["mnist"]):
        cost = measure_http_overhead(checkpoint, rate, count, seconds)
        typer.echo(table(cost))
        typer.echo(json.dumps(cost))


def _bench_service(names: list[str], weights: Path | None, backend: str, repeats: int) -> None:
    from scanline.model.bench.models import find_models
    from scanline.service.bench.http_throughput import measure_http_throughput, table

    for checkpoint in find_models(names, weights, ["mnist-paper"]):
        result = measure_http_throughput(checkpoint, backend, repeats=repeats)
        typer.echo(table(result))
        typer.echo(json.dumps(result))
