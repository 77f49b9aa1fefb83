"""Quantities of drawing speed that decide the paper's claims.

Each function returns a function of the supplement's rows of one mode, by their keys.
"""

from __future__ import annotations

from statistics import median

from scanline.model.paper.latency import by_method, fastest, speed
from scanline.model.paper.markdown import number
from scanline.model.paper.quantity import (
    AllRows,
    Measure,
    NotMeasuredError,
    Quantity,
    check_same_machine,
    extreme,
    timing_ratio,
)
from scanline.model.paper.report import Row


def _methods(rows: AllRows, device: str, data: str, names: tuple[str, ...]) -> list[list[Row]]:
    found = by_method(dict(rows), device, data)
    if missing := [name for name in names if name not in found]:
        where = "GPU" if device == "cuda" else "CPU"
        verb = "is" if len(missing) == 1 else "are"
        raise NotMeasuredError(f"{', '.join(missing)} {verb} not measured on a {where} yet")
    return [found[name] for name in names]


def _best_device(rows: AllRows, data: str, names: tuple[str, ...]) -> str:
    """Return ``cuda`` if all methods are measured on a GPU, as in the paper, otherwise ``cpu``."""
    return "cuda" if set(names) <= by_method(dict(rows), "cuda", data).keys() else "cpu"


def _one_image(points: list[Row]) -> list[float]:
    """Return the timings of a method at batch size 1."""
    timings: list[float] | None = next((p["seconds"] for p in points if p["batch"] == 1), None)
    if timings is None:
        raise NotMeasuredError(f"{points[0]['method']} is not measured at batch size 1")
    return timings


def speed_ratio(data: str, first: str, second: str) -> Measure:
    """Return the images/s of one method ÷ another, each at its best batch size."""

    def measure(rows: AllRows) -> Quantity:
        device = _best_device(rows, data, (first, second))
        points = _methods(rows, device, data, (first, second))
        a, b = (fastest(one) for one in points)
        check_same_machine((a, b))
        found = timing_ratio(*([s / row["batch"] for s in row["seconds"]] for row in (b, a)))
        said = ", ".join(
            f"{row['method']} {number(speed(row))} images/s at batch size {row['batch']:,}"
            for row in (a, b)
        )
        if device == "cpu":
            said += ", on a CPU"
        return Quantity(found.value, found.low, found.high, said)

    return measure


def largest_batch(data: str, method: str) -> Measure:
    """Return the largest batch size that a method drew, if only memory limits it."""

    def measure(rows: AllRows) -> Quantity:
        device = _best_device(rows, data, (method,))
        (points,) = _methods(rows, device, data, (method,))
        value = float(max(row["batch"] for row in points))
        facts = (device, data, method)
        stops = {
            row["stopped"]
            for row in rows.values()
            if "stopped" in row and (row["device"], row["data"], row["method"]) == facts
        }
        if stops - {"memory"}:
            raise NotMeasuredError(
                f"{value:,.0f} images were drawn; more would take more than {max(stops)}"
            )
        return Quantity(value, value, value, "on a CPU" if device == "cpu" else "")

    return measure


def latency_lead(data: str, device: str) -> Measure:
    """Return the latency of the fastest other kind of the paper ÷ that of linear."""
    names = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")

    def measure(rows: AllRows) -> Quantity:
        points = _methods(rows, device, data, names)
        check_same_machine(one[0] for one in points)
        seconds = dict(zip(names, map(_one_image, points), strict=True))
        nearest = min(names[1:], key=lambda name: float(median(seconds[name])))
        said = ", ".join(
            f"{name} {number(median(seconds[name]))} s" for name in (names[0], nearest)
        )
        ratios = [timing_ratio(seconds[name], seconds[names[0]]) for name in names[1:]]
        return extreme(min, ratios, said)

    return measure


def device_ratio(data: str, method: str) -> Measure:
    """Return the latency of a method on a GPU ÷ on a CPU."""

    def measure(rows: AllRows) -> Quantity:
        seconds = []
        for device in ("cuda", "cpu"):
            (points,) = _methods(rows, device, data, (method,))
            seconds.append(_one_image(points))
        found = timing_ratio(*seconds)
        said = f"{number(median(seconds[0]))} s and {number(median(seconds[1]))} s"
        return Quantity(found.value, found.low, found.high, said)

    return measure
