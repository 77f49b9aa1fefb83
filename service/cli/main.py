"""Entry point of the command line: its commands, and the handling of user errors."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from scanline.service import __version__
from scanline.service.cli.bench import bench
from scanline.service.cli.checkpoints import compact, import_weights
from scanline.service.cli.draw import complete, sample
from scanline.service.cli.evaluate import evaluate
from scanline.service.cli.paper import paper
from scanline.service.cli.serve import serve
from scanline.service.cli.train import train
from scanline.service.cli.verify import verify
from scanline.service.logs import mute_pillow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Draw images pixel by pixel with a linear transformer run as an RNN.",
)
for command in (serve, sample, complete, verify, train, evaluate, compact, bench):
    app.command()(command)
app.command("import")(import_weights)
app.add_typer(paper, name="paper")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"scanline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Draw images pixel by pixel with a linear transformer run as an RNN."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; an error that the user can fix ends it with a message and status 1."""
    mute_pillow()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent, as by `>&-`
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open until the process ends
    try:
        app(args=arguments)
    except (ValueError, RuntimeError, FloatingPointError, OSError, MemoryError) as error:
        logging.getLogger("scanline").debug("failed", exc_info=True)
        for line in str(error).splitlines() or [type(error).__name__]:
            # A message may quote a file, whose control characters must not reach the terminal.
            printable = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
            typer.echo(f"scanline: {printable}", err=True)
        sys.exit(1)
