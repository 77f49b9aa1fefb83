"""Base class of the experiments: units of measured rows, and their presentation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

import torch

from scanline.model.paper.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Mode = Literal["quick", "default", "full"]
MODES: tuple[Mode, ...] = ("quick", "default", "full")
Rows = Iterator[tuple[str, Callable[[], Row]]]
Settings = TypeVar("Settings")


class Experiment(ABC, Generic[Settings]):
    """A figure or table of the paper, measured in units: one kind of attention each.

    The presentation methods receive the rows of all units that were measured in one mode, by their
    keys, which name the kind and are therefore different in different units.

    Args:
        presets: Settings of each mode, as a dataclass that can be written as JSON. ``quick`` takes
            about a minute per unit, ``default`` up to 90 minutes on one core, and ``full`` has the
            paper's settings.
    """

    name: str
    title: str
    inches: ClassVar[tuple[float, float]] = (10, 4.2)  # size of the plot

    def __init__(self, presets: Mapping[Mode, Settings]) -> None:
        self.presets = presets

    def settings(self, mode: Mode, data_dir: Path | None) -> Settings:
        """Return the settings of a run with this ``data_dir``."""
        return self.presets[mode]

    @abstractmethod
    def units(self, settings: Settings) -> list[str]:
        """List the names of the units, which are names of files, on any machine."""

    def missing(self, unit: str) -> str | None:
        """Return what a unit needs that this machine lacks, or None."""
        return None

    @abstractmethod
    def rows(
        self,
        unit: str,
        settings: Settings,
        report: Report,
        data_dir: Path | None,
        device: torch.device,
    ) -> Rows:
        """Yield the key of each row of a unit, and a function that measures it.

        The rows measured so far are in ``report``.
        """

    @abstractmethod
    def caption(self, s: Row) -> str:
        """Describe the rows, from their settings."""

    @abstractmethod
    def table(self, rows: dict[str, Row]) -> str:
        """Return the rows as Markdown tables, with the paper's results beside ours."""

    @abstractmethod
    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        """Plot the rows."""

    def save_plot(self, rows: dict[str, Row], path: Path) -> None:
        """Write the plot as a PNG; raise ``ValueError`` if matplotlib is not installed."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise ValueError(
                "plots need matplotlib: run pip install 'scanline-rnn[paper]' and try again"
            ) from None
        figure = Figure(figsize=self.inches, layout="constrained")
        FigureCanvasAgg(figure)
        self.plot(figure, rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
