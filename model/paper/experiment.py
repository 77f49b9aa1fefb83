"""Base class of the experiments: measure the rows of a table one by one, and format them."""

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
    """A claim of the paper, the result measured here, and whether the claim holds."""

    claim: str
    found: str
    holds: bool


class Experiment(ABC, Generic[Settings]):
    """A figure or table of the paper.

    The ``full`` settings are the paper's; the ``quick`` ones take minutes. Settings are a dataclass
    that can be written as JSON. Presentation methods receive the rows and settings read from a
    report's JSON.
    """

    name: str
    title: str
    inches: ClassVar[tuple[float, float]] = (10, 4.2)  # size of the plot
    full: Settings
    quick: Settings

    def settings(self, quick: bool, data_dir: Path | None) -> Settings:
        """Return the settings of a run with this ``data_dir``."""
        return self.quick if quick else self.full

    @abstractmethod
    def rows(
        self, settings: Settings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        """Yield the key of each row and a function that measures it.

        The rows measured so far are in ``report``.
        """

    @abstractmethod
    def caption(self, s: Row) -> str:
        """Describe the rows, from their settings."""

    @abstractmethod
    def table(self, rows: dict[str, Row]) -> str:
        """Return the rows as Markdown tables, with the paper's results beside ours."""

    @abstractmethod
    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        """Yield the claims that the rows decide."""

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
                "plots need matplotlib: run pip install -e '.[paper]' and try again"
            ) from None
        figure = Figure(figsize=self.inches, layout="constrained")
        FigureCanvasAgg(figure)
        self.plot(figure, rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
