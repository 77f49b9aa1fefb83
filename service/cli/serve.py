"""``scanline serve``: the HTTP service."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import typer

from scanline.service.cli.options import Threads, WeightsDir
from scanline.service.logs import set_up_logs


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port; 0 chooses a free one. Default: 8000.")
    ] = None,
    weights: WeightsDir = None,
    models: Annotated[
        str | None,
        typer.Option(help="Names of the models to serve, separated by commas, the default first."),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, reference, native or triton.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Slots per model; a guided image takes two. Default: 64.")
    ] = None,
    threads: Threads = None,
    max_waiting: Annotated[
        int | None, typer.Option(help="Limit of queued images, per model. Default: 4096.")
    ] = None,
    cluster: Annotated[
        bool | None,
        typer.Option("--cluster", help="Draw in the Ray cluster at RAY_ADDRESS, or in a new one."),
    ] = None,
    min_replicas: Annotated[
        int | None, typer.Option(help="Minimum replicas per model, in a cluster.")
    ] = None,
    max_replicas: Annotated[
        int | None, typer.Option(help="Maximum replicas per model, in a cluster.")
    ] = None,
    drain_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds for running images to finish after SIGTERM. Default: 30."),
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json. Default: text.")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error. Default: info.")
    ] = None,
) -> None:
    """Serve models over HTTP. docs/operations.md lists all settings (SCANLINE_* variables)."""
    given = {name: value for name, value in locals().items() if value is not None}
    _exit_on_signals()
    # Imported here, because training must work without the service's packages.
    from pydantic import ValidationError

    from scanline.service.server import serve as run
    from scanline.service.settings import Settings

    try:
        try:
            settings = Settings(**given)
        except ValidationError as error:
            messages = [_describe(problem, given) for problem in error.errors()]
            raise ValueError("\n".join(messages)) from error
        run(settings)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        named = {name.upper(): value for name, value in os.environ.items()}
        if (log_format or named.get("SCANLINE_LOG_FORMAT")) != "json":
            raise
        set_up_logs("json", "info")  # not done yet if the settings are invalid
        logging.getLogger("scanline.server").critical("%s", str(error) or type(error).__name__)
        raise typer.Exit(1) from None


def _exit_on_signals() -> None:
    """Exit at SIGTERM or SIGHUP, which the first process of a container ignores by default."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, lambda *_: sys.exit(0))


def _describe(problem: Mapping[str, Any], given: Collection[str]) -> str:
    """Describe an invalid setting, by its flag if it is in ``given``, else by its variable."""
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    where = f"--{name.replace('_', '-')}" if name in given else f"SCANLINE_{name.upper()}"
    return f"{where}: {message}" if name else message
