"""``scanline serve``."""

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
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 if none.")] = None,
    port: Annotated[int | None, typer.Option(help="8000 if none; 0 takes a free one.")] = None,
    weights: WeightsDir = None,
    models: Annotated[
        str | None, typer.Option(help="Serve only these, comma-separated, the default first.")
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, reference, native or triton.")] = None,
    slots: Annotated[int | None, typer.Option(help="Images at once, a model; 64 if none.")] = None,
    threads: Threads = None,
    max_waiting: Annotated[
        int | None, typer.Option(help="Images that may wait, a model; 4096 if none.")
    ] = None,
    cluster: Annotated[
        bool | None,
        typer.Option("--cluster", help="Draw in the Ray cluster of RAY_ADDRESS, or a new one."),
    ] = None,
    min_replicas: Annotated[int | None, typer.Option(help="Of each model, in a cluster.")] = None,
    max_replicas: Annotated[int | None, typer.Option(help="Of each model, in a cluster.")] = None,
    drain_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds that what runs has after SIGTERM; 30 if none."),
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json; text if none.")] = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error; info if none.")
    ] = None,
) -> None:
    """Serve models over HTTP; every setting is a SCANLINE_* variable too (see
    docs/operations.md)."""
    given = {name: value for name, value in locals().items() if value is not None}
    _end_at_a_signal()
    # What other commands do without: training runs where the service's packages are not installed.
    from pydantic import ValidationError

    from scanline.service.server import serve as run
    from scanline.service.settings import Settings

    try:
        try:
            settings = Settings(**given)
        except ValidationError as error:
            told = [_sentence(problem, given) for problem in error.errors()]
            raise ValueError("\n".join(told)) from error
        run(settings)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        named = {name.upper(): value for name, value in os.environ.items()}
        if (log_format or named.get("SCANLINE_LOG_FORMAT")) != "json":
            raise
        set_up_logs("json", "info")  # nobody has yet, where the settings are wrong
        logging.getLogger("scanline.server").critical("%s", str(error) or type(error).__name__)
        raise typer.Exit(1) from None


def _end_at_a_signal() -> None:
    """End at SIGTERM or SIGHUP from now on; a process that is a container's first ignores them."""
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(one) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(one, lambda *_: sys.exit(0))


def _sentence(problem: Mapping[str, Any], given: Collection[str]) -> str:
    """Say what is wrong with a setting, by the flag that it was ``given`` as, or its variable."""
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    where = f"--{name.replace('_', '-')}" if name in given else f"SCANLINE_{name.upper()}"
    return f"{where}: {message}" if name else message
