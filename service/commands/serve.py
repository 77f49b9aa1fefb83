"""``scanline serve``."""

from __future__ import annotations

from typing import Annotated

import typer

from scanline.service.commands.options import Threads, WeightsDir


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
    from scanline.service.serving import serve as run
    from scanline.service.settings import Settings

    given = {name: value for name, value in locals().items() if name in Settings.model_fields}
    run(Settings(**{name: value for name, value in given.items() if value is not None}))
