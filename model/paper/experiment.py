"""Base class of the experiments: units of measured rows, and their presentation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class UnitRun(Generic[Settings]):
    """A unit to measure, and what it is measured with.

    Attributes:
        unit: Name of the unit.
        settings: The experiment's settings.
        report: Rows measured so far.
        data_dir: Folder of the data sets; for table 3, a folder of speech.
        device: Device to compute on.
    """

    unit: str
    settings: Settings
    report: Report
    data_dir: Path | None
    device: torch.device


class Experiment(ABC, Generic[Settings]):
    """An experiment of ``scanline paper``, measured in units that can be resumed.

    A unit is mostly a kind of attention. The presentation methods receive the rows of all units
    that were measured in one mode, by their keys, which must differ between units.

    Args:
        presets: Settings of each mode, as a dataclass that can be written as JSON. ``quick`` takes
            about a minute per unit, ``default`` hours on one core, and ``full`` has the paper's
            settings.
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
    def rows(self, run: UnitRun[Settings]) -> Rows:
        """Yield the key of each row of a unit, and a function that measures it."""

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
