"""What an experiment of the paper is: rows measured one by one, and how they are shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar

import torch

from scanline.model.paper.report import Report, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Iterator[tuple[str, Callable[[], Row]]]
Settings = TypeVar("Settings")


class Verdict(NamedTuple):
    """A claim of the paper, what was found here, and whether it holds."""

    claim: str
    found: str
    holds: bool


class Experiment(ABC, Generic[Settings]):
    """A figure or table of the paper; ``full`` settings are the paper's, ``quick`` take minutes.

    Settings are a dataclass of what JSON can hold; what is shown is shown of a report's JSON.
    """

    name: str
    title: str
    inches: ClassVar[tuple[float, float]] = (10, 4.2)  # of the plot
    full: Settings
    quick: Settings

    def settings(self, quick: bool, data_dir: Path | None) -> Settings:
        """Give the settings of a run that reads ``data_dir``."""
        return self.quick if quick else self.full

    @abstractmethod
    def rows(
        self, settings: Settings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        """Give each row's key and what makes it; rows made before are those of ``report``."""

    @abstractmethod
    def caption(self, s: Row) -> str:
        """Say what the rows are of, from their settings."""

    @abstractmethod
    def table(self, rows: dict[str, Row]) -> str:
        """Give the rows as one or more tables in Markdown, the paper's figures beside ours."""

    @abstractmethod
    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        """Give the claims that the rows decide."""

    @abstractmethod
    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        """Draw the rows."""

    def save_plot(self, rows: dict[str, Row], path: Path) -> None:
        """Write the plot as a PNG; raises ``ValueError`` where matplotlib is missing."""
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            raise ValueError(
                "plots need matplotlib: pip install -e '.[paper]', then run this again"
            ) from None
        figure = Figure(figsize=self.inches, layout="constrained")
        FigureCanvasAgg(figure)
        self.plot(figure, rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
