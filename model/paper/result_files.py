"""All results in a folder: the reports of each experiment, by mode and unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scanline.model.paper.experiment import MODES, Mode
from scanline.model.paper.report import Row, read

BEST_FIRST: tuple[Mode, ...] = ("full", "default", "quick")


@dataclass
class Measured:
    """Reports of one experiment in one mode, by unit; they share their settings."""

    settings: Row = field(default_factory=dict)
    reports: dict[str, Row] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, Row]:
        """The rows of all units by key, with the ``hardware`` of their report as ``machine``."""
        return {
            key: row | {"machine": report["hardware"]}
            for report in self.reports.values()
            for key, row in report["rows"].items()
        }


Results = dict[str, dict[Mode, Measured]]


def read_results(folder: Path, order: dict[str, list[str]]) -> Results:
    """Read ``FOLDER/MODE/EXPERIMENT/UNIT.json``.

    Args:
        folder: Folder of the results.
        order: Names of the units of each experiment in the order of the tables. Other units follow.

    Raises:
        ValueError: If a file is not a report, or units of one experiment and mode have different
            settings.
    """
    found: Results = {name: {} for name in order}
    for name, units in order.items():
        for mode in MODES:
            home = folder / mode / name
            paths = {path.stem: path for path in sorted(home.glob("*.json"))}
            chosen = [unit for unit in units if unit in paths]
            chosen += [unit for unit in paths if unit not in units]
            measured = Measured()
            for unit in chosen:
                report = read(paths[unit])
                measured.settings = measured.settings or report["settings"]
                if report["settings"] != measured.settings:
                    raise ValueError(
                        f"{paths[unit]} has other settings than {chosen[0]} beside it: measure one "
                        "of them again"
                    )
                if report["rows"]:
                    measured.reports[unit] = report
            if measured.reports:
                found[name][mode] = measured
    return found
