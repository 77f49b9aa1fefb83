"""Quantities that decide the paper's claims, computed from the rows of an experiment.

Each function returns a function of the rows of one mode, by their keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scanline.model.paper.latency import by_method, fastest, speed
from scanline.model.paper.markdown import number
from scanline.model.paper.report import Row, by_kind
from scanline.model.paper.scaling import PLAIN, slope
from scanline.model.paper.speech.table import epoch_seconds

AllRows = Mapping[str, Row]
ENOUGH = 600  # seconds of training, below which networks on images are not compared
LEARNED = 0.5  # nats per symbol, below which a network has learned to copy; guessing gives 2.3


class NotMeasuredError(Exception):
    """The rows do not contain a quantity; the message is the reason."""


@dataclass(frozen=True)
class Quantity:
    """A measured quantity.

    Attributes:
        value: The quantity.
        low: Lower end of its spread: one standard error, or the extreme timings.
        high: Upper end.
        details: What it was computed from.
    """

    value: float
    low: float
    high: float
    details: str = ""

    def text(self) -> str:
        """Format the value, its spread and the details."""
        spread = f" ({number(self.low)} to {number(self.high)})" if self.low != self.high else ""
        return f"{number(self.value)}{spread}" + (f": {self.details}" if self.details else "")


Measure = Callable[[AllRows], Quantity]


def _row(rows: AllRows, key: str) -> Row:
    if key not in rows:
        raise NotMeasuredError(f"`{key}` is not measured yet")
    return rows[key]


def _at_mark(rows: Sequence[Row], mark: str) -> list[Row]:
    """Return the evaluation of each row at the largest common value of a mark."""
    by_value = [{one[mark]: one for one in row["evaluations"] if mark in one} for row in rows]
    common = set.intersection(*(set(one) for one in by_value))
    if not common:
        raise NotMeasuredError("the kinds were not evaluated after equal training yet")
    return [one[max(common)] for one in by_value]


def _names(kinds: str | tuple[str, ...]) -> tuple[str, ...]:
    return (kinds,) if isinstance(kinds, str) else kinds


def copy_difference(first: str | tuple[str, ...], second: str) -> Measure:
    """Return the lowest loss of the first kinds minus the second's, after equal steps."""

    def measure(rows: AllRows) -> Quantity:
        kinds = (*_names(first), second)
        runs = [_row(rows, f"{kind} 0") for kind in kinds]
        points = _at_mark(runs, "step_mark")
        losses = [point["loss"] for point in points]
        if min(losses) > LEARNED:
            raise NotMeasuredError(
                f"after {points[0]['steps']:,} steps no kind has learned to copy (lowest loss "
                f"{number(min(losses))})"
            )
        value = min(losses[:-1]) - losses[-1]
        said = ", ".join(f"{k} {number(loss)}" for k, loss in zip(kinds, losses, strict=True))
        return Quantity(value, value, value, f"{said} after {points[0]['steps']:,} steps, one seed")

    return measure


def _points(rows: AllRows, kind: str) -> list[Row]:
    points = by_kind(rows.values()).get(kind, [])
    if not points:
        raise NotMeasuredError(f"{kind} is not measured yet")
    return sorted(points, key=lambda row: row["length"])


def exponent(kind: str, what: str) -> Measure:
    """Return the exponent of the length with which time or memory grows."""

    def measure(rows: AllRows) -> Quantity:
        points = [row for row in _points(rows, kind) if "stopped" not in row]
        power = slope(points, what)
        if power is None:
            raise NotMeasuredError(f"fewer than three lengths of {kind} are measured")
        low, high = power, power
        if what == "seconds":  # the slowest of the first length with the fastest of the last
            a, b = points[-4:][0]["seconds"], points[-1]["seconds"]
            factor = math.log(points[-1]["length"] / points[-4:][0]["length"])
            low += math.log(min(b) / median(b) * median(a) / max(a)) / factor
            high += math.log(max(b) / median(b) * median(a) / min(a)) / factor
        return Quantity(power, low, high, f"up to {points[-1]['length']:,} positions")

    return measure


def largest_exponent(kinds: tuple[str, ...], what: str) -> Measure:
    """Return the largest exponent of several kinds."""

    def measure(rows: AllRows) -> Quantity:
        found = {kind: exponent(kind, what)(rows) for kind in kinds}
        worst = max(found, key=lambda kind: found[kind].value)
        said = ", ".join(f"{kind} {number(one.value)}" for kind, one in found.items())
        return Quantity(found[worst].value, found[worst].low, found[worst].high, said)

    return measure


def smallest_ratio(what: str) -> Measure:
    """Return the smallest ratio of another kind to linear at any length, in plain PyTorch."""

    def measure(rows: AllRows) -> Quantity:
        linear = {row["length"]: row for row in _points(rows, PLAIN[0])}
        ratios: list[tuple[float, str, Row, Row]] = []
        for kind in PLAIN[1:]:
            for row in _points(rows, kind):
                other = linear.get(row["length"], {"stopped": True})
                if "stopped" not in row and "stopped" not in other:
                    a, b = (_median(one[what]) for one in (row, other))
                    ratios.append((a / b, f"{kind} at {row['length']:,}", row, other))
        if not ratios:
            raise NotMeasuredError("no two kinds are measured at one length")
        value, said, row, other = min(ratios, key=lambda one: one[0])
        low, high = value, value
        if what == "seconds":
            low = min(row[what]) / max(other[what])
            high = max(row[what]) / min(other[what])
        return Quantity(value, low, high, said)

    return measure


def _median(value: float | list[float]) -> float:
    return median(value) if isinstance(value, list) else value


def bits_ratio(first: str | tuple[str, ...], second: str, mark: str) -> Measure:
    """Return the lowest bits/dim of the first kinds ÷ the second's, after equal training.

    The spread treats the test images of both as independent, so it is wider than that of the
    difference on the same images.
    """

    def measure(rows: AllRows) -> Quantity:
        kinds = (*_names(first), second)
        runs = [_row(rows, f"train {kind}") for kind in kinds]
        if (least := min(run["seconds"] for run in runs)) < ENOUGH:
            raise NotMeasuredError(
                f"trained for {least:,.0f} seconds so far; a verdict needs {ENOUGH}"
            )
        points = _at_mark(runs, mark)
        lowest = min(points[:-1], key=lambda point: float(point["bits_per_dim"]))
        a, b = lowest, points[-1]
        value = a["bits_per_dim"] / b["bits_per_dim"]
        error = value * math.hypot(
            a["standard_error"] / a["bits_per_dim"], b["standard_error"] / b["bits_per_dim"]
        )
        said = ", ".join(
            f"{kind} {point['bits_per_dim']:.3f}" for kind, point in zip(kinds, points, strict=True)
        )
        unit, amount = (
            ("images", points[0]["images_seen"])
            if mark == "images_seen"
            else ("seconds", points[0]["second_mark"])
        )
        return Quantity(value, value - error, value + error, f"{said} after {amount:,.0f} {unit}")

    return measure


def images_ratio(first: str, second: str) -> Measure:
    """Return the images seen by one kind ÷ another after equal time."""

    def measure(rows: AllRows) -> Quantity:
        points = _at_mark([_row(rows, f"train {kind}") for kind in (first, second)], "second_mark")
        a, b = (point["images_seen"] for point in points)
        said = f"{a:,} and {b:,} after {points[0]['second_mark']:,.0f} seconds"
        return Quantity(a / b, a / b, a / b, said)

    return measure


def training_time_range(kinds: tuple[str, ...]) -> Measure:
    """Return the training time per image of the slowest kind ÷ that of the fastest."""

    def measure(rows: AllRows) -> Quantity:
        runs = {kind: _row(rows, f"train {kind}") for kind in kinds}
        each = {kind: run["seconds"] / run["steps"] / run["batch"] for kind, run in runs.items()}
        value = max(each.values()) / min(each.values())
        said = ", ".join(f"{kind} {number(1e3 * one)} ms" for kind, one in each.items())
        return Quantity(value, value, value, said)

    return measure


def _methods(rows: AllRows, device: str, data: str, names: tuple[str, ...]) -> list[list[Row]]:
    found = by_method(dict(rows), device, data)
    if missing := [name for name in names if name not in found]:
        raise NotMeasuredError(f"{', '.join(missing)} on a {device.upper()} is not measured")
    return [found[name] for name in names]


def _ratio(first: list[float], second: list[float]) -> Quantity:
    return Quantity(
        median(first) / median(second), min(first) / max(second), max(first) / min(second)
    )


def speed_ratio(data: str, first: str, second: str, device: str = "cpu") -> Measure:
    """Return the images/s of one method ÷ another, each at its best batch size."""

    def measure(rows: AllRows) -> Quantity:
        points = _methods(rows, device, data, (first, second))
        a, b = (fastest(one) for one in points)
        found = _ratio(*([s / row["batch"] for s in row["seconds"]] for row in (b, a)))
        said = ", ".join(
            f"{row['method']} {number(speed(row))} images/s at batch size {row['batch']:,}"
            for row in (a, b)
        )
        return Quantity(found.value, found.low, found.high, said)

    return measure


def largest_batch(data: str, method: str, device: str = "cpu") -> Measure:
    """Return the largest batch size that a method drew, if only memory limits it."""
    facts = (device, data, method)

    def measure(rows: AllRows) -> Quantity:
        (points,) = _methods(rows, device, data, (method,))
        value = float(max(row["batch"] for row in points))
        stops = {
            row["stopped"]
            for row in rows.values()
            if "stopped" in row and (row["device"], row["data"], row["method"]) == facts
        }
        if stops - {"memory"}:
            raise NotMeasuredError(
                f"{value:,.0f} images were drawn; more would take more than {max(stops)}"
            )
        return Quantity(value, value, value)

    return measure


def latency_lead(data: str, device: str) -> Measure:
    """Return the latency of the fastest other kind of the paper ÷ that of linear."""
    names = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")

    def measure(rows: AllRows) -> Quantity:
        points = _methods(rows, device, data, names)
        one = [next(row for row in some if row["batch"] == 1) for some in points]
        nearest = min(one[1:], key=lambda row: float(median(row["seconds"])))
        found = _ratio(nearest["seconds"], one[0]["seconds"])
        said = ", ".join(
            f"{row['method']} {number(median(row['seconds']))} s" for row in (one[0], nearest)
        )
        return Quantity(found.value, found.low, found.high, said)

    return measure


def device_ratio(data: str, method: str) -> Measure:
    """Return the latency of a method on a GPU ÷ on a CPU."""

    def measure(rows: AllRows) -> Quantity:
        seconds = []
        for device in ("cuda", "cpu"):
            (points,) = _methods(rows, device, data, (method,))
            seconds.append(next(row["seconds"] for row in points if row["batch"] == 1))
        found = _ratio(*seconds)
        said = f"{number(median(seconds[0]))} s and {number(median(seconds[1]))} s"
        return Quantity(found.value, found.low, found.high, said)

    return measure


def error_difference(first: tuple[str, ...], second: str) -> Measure:
    """Return the lowest error rate of the first encoders minus the second's, in points."""

    def measure(rows: AllRows) -> Quantity:
        runs = [_row(rows, f"train {kind}") for kind in (*first, second)]
        if any(run.get("unfinished") for run in runs):
            raise NotMeasuredError("a training is unfinished")
        points = [run["evaluations"][-1] for run in runs]
        best = min(points[:-1], key=lambda point: float(point["error_rate"]))
        value = 100 * (best["error_rate"] - points[-1]["error_rate"])
        error = 100 * math.hypot(best["standard_error"], points[-1]["standard_error"])
        said = ", ".join(
            f"{run['kind']} {100 * point['error_rate']:.2f} %"
            for run, point in zip(runs, points, strict=True)
        )
        return Quantity(value, value - error, value + error, said)

    return measure


def epoch_ratio(first: tuple[str, ...], second: str) -> Measure:
    """Return the training time per epoch of the fastest of the first encoders ÷ the second's."""

    def measure(rows: AllRows) -> Quantity:
        others = [epoch_seconds(_row(rows, f"train {kind}")) for kind in first]
        mine = epoch_seconds(_row(rows, f"train {second}"))
        best = min(others, key=lambda one: float(median(one)))
        found = _ratio(best, mine)
        said = f"{number(median(best))} s and {number(median(mine))} s"
        return Quantity(found.value, found.low, found.high, said)

    return measure
