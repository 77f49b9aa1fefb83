"""Quantities of training and scaling that decide the paper's claims.

Each function returns a function of the rows of one mode, by their keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from scanline.model.paper.image_tables import ENOUGH, pair_bits
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
from scanline.model.paper.report import Row, by_kind
from scanline.model.paper.scaling import PLAIN, slope
from scanline.model.paper.speech.table import BEGUN, epoch_seconds

ENOUGH_STEPS = 4000  # of copying; the paper lowers the learning rate after 3,000
LEARNED = 0.5  # nats per symbol, below which a network has learned to copy; guessing gives 2.3
FLAT = 0.05  # share of the validation errors that a converged encoder may still lose in an epoch
Z_95 = 1.96  # half the width of a 95 % confidence interval, in standard errors
# The entry of every evaluation that has the value of a mark.
AMOUNTS = {"step_mark": "steps", "images_seen": "images_seen", "second_mark": "seconds"}


def _row(rows: AllRows, key: str) -> Row:
    if key not in rows:
        kind = key.removeprefix("train ").split()[0]
        raise NotMeasuredError(f"{kind} is not measured yet")
    return rows[key]


def _at_mark(rows: Sequence[Row], mark: str) -> list[Row]:
    """Return the evaluation of each row after equal training.

    This is the last one if all trainings have ended with an equal amount, and otherwise the one at
    the largest common value of the mark.
    """
    ends = [row["evaluations"][-1] for row in rows if row["evaluations"]]
    if len(ends) == len(rows) and not any(row.get("unfinished") for row in rows):
        amounts = [end[AMOUNTS[mark]] for end in ends]
        if max(amounts) < 1.01 * min(amounts):
            return ends
    # The last evaluation may be at a mark too, but is on more images.
    by_value = [
        {(one[mark], one.get("images")): one for one in row["evaluations"] if mark in one}
        for row in rows
    ]
    common = set.intersection(*(set(one) for one in by_value))
    if not common:
        raise NotMeasuredError("the kinds were not evaluated after equal training yet")
    largest = max(common, key=lambda key: float(key[0]))
    return [one[largest] for one in by_value]


def _trained(rows: AllRows, kinds: Sequence[str]) -> list[Row]:
    """Return the rows of kinds in tables 1 and 2, if each was trained enough to be compared."""
    runs = [_row(rows, f"train {kind}") for kind in kinds]
    if (least := min(run["seconds"] for run in runs)) < ENOUGH:
        raise NotMeasuredError(f"trained for {least:,.0f} seconds so far; a verdict needs {ENOUGH}")
    return runs


def _names(kinds: str | tuple[str, ...]) -> tuple[str, ...]:
    return (kinds,) if isinstance(kinds, str) else kinds


def copy_difference(first: str | tuple[str, ...], second: str) -> Measure:
    """Return the lowest loss of the first kinds minus the second's, after equal steps.

    It is the mean of all seeds, and its spread is theirs.
    """

    def measure(rows: AllRows) -> Quantity:
        kinds = (*_names(first), second)
        trained = [{key.split()[1] for key in rows if key.split()[0] == kind} for kind in kinds]
        seeds = sorted(set.intersection(*trained)) or ["0"]
        points = [_copy_points(rows, kinds, seed) for seed in seeds]
        values = [min(one["loss"] for one in found[:-1]) - found[-1]["loss"] for found in points]
        said = ", ".join(
            f"{kind} {number(point['loss'])} ({100 * point['accuracy']:.2f} % right)"
            for kind, point in zip(kinds, points[0], strict=True)
        )
        said += f" after {points[0][0]['steps']:,} steps, "
        said += "one seed" if len(seeds) == 1 else f"the first of {len(seeds)} seeds"
        return Quantity(fmean(values), min(values), max(values), said)

    return measure


def _copy_points(rows: AllRows, kinds: Sequence[str], seed: str) -> list[Row]:
    """Return the evaluation of each kind after equal steps, if they were enough."""
    points = _at_mark([_row(rows, f"{kind} {seed}") for kind in kinds], "step_mark")
    steps, lowest = points[0]["steps"], min(point["loss"] for point in points)
    if steps < ENOUGH_STEPS:
        raise NotMeasuredError(
            f"all kinds trained for {steps:,} steps so far; a verdict needs {ENOUGH_STEPS:,}"
        )
    if lowest > LEARNED:
        raise NotMeasuredError(
            f"after {steps:,} steps no kind has learned to copy (lowest loss {number(lowest)})"
        )
    return points


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
        if what == "seconds":  # the ends of the intervals at the first and the last length
            first, last = points[-4:][0], points[-1]
            ratio = timing_ratio(last["seconds"], first["seconds"])
            factor = math.log(last["length"] / first["length"])
            low += math.log(ratio.low / ratio.value) / factor
            high += math.log(ratio.high / ratio.value) / factor
        return Quantity(power, low, high, f"up to {points[-1]['length']:,} positions")

    return measure


def largest_exponent(kinds: tuple[str, ...], what: str) -> Measure:
    """Return the largest exponent of several kinds."""

    def measure(rows: AllRows) -> Quantity:
        found = {kind: exponent(kind, what)(rows) for kind in kinds}
        said = ", ".join(f"{kind} {number(one.value)}" for kind, one in found.items())
        return extreme(max, found.values(), said)

    return measure


def smallest_ratio(what: str) -> Measure:
    """Return the smallest ratio of another kind to linear at any length, in plain PyTorch."""

    def measure(rows: AllRows) -> Quantity:
        linear = {row["length"]: row for row in _points(rows, PLAIN[0])}
        ratios: dict[str, Quantity] = {}
        for kind in PLAIN[1:]:
            for row in _points(rows, kind):
                other = linear.get(row["length"], {"stopped": True})
                if "stopped" in row or "stopped" in other:
                    continue
                if what == "seconds":
                    check_same_machine((row, other))
                    ratio = timing_ratio(row[what], other[what])
                else:
                    value = row[what] / other[what]
                    ratio = Quantity(value, value, value)
                ratios[f"{kind} at {row['length']:,}"] = ratio
        if not ratios:
            raise NotMeasuredError("no two kinds are measured at one length")
        said = min(ratios, key=lambda name: ratios[name].value)
        return extreme(min, ratios.values(), said)

    return measure


def bits_ratio(first: str | tuple[str, ...], second: str, mark: str, data: str) -> Measure:
    """Return the lowest bits/dim of the first kinds ÷ the second's, after equal training.

    It is not measured until one of the kinds predicts ``data`` better than a table of pairs does.
    """

    def measure(rows: AllRows) -> Quantity:
        kinds = (*_names(first), second)
        runs = _trained(rows, kinds)
        if mark == "second_mark":
            check_same_machine(runs)
        points = _at_mark(runs, mark)
        best = min(points, key=lambda point: float(point["bits_per_dim"]))
        if best["bits_per_dim"] > (pairs := pair_bits(data, best["images"])):
            raise NotMeasuredError(
                "no kind predicts better than a table of pairs yet: "
                f"{best['bits_per_dim']:.3f} bits/dim against {pairs:.3f}, after equal training"
            )
        ratios = []
        for point in points[:-1]:
            value = point["bits_per_dim"] / points[-1]["bits_per_dim"]
            error = Z_95 * _ratio_error(point, points[-1])
            ratios.append(Quantity(value, value - error, value + error))
        said = ", ".join(
            f"{kind} {point['bits_per_dim']:.3f}" for kind, point in zip(kinds, points, strict=True)
        )
        unit = "images" if mark == "images_seen" else "seconds"
        said += f" after {points[0][AMOUNTS[mark]]:,.0f} {unit}, one seed"
        return extreme(min, ratios, said)

    return measure


def _ratio_error(a: Row, b: Row) -> float:
    """Return the standard error of the ratio of two evaluations on the same test images.

    If a report lacks the bits of each image, they are treated as independent in both, which
    exaggerates it.
    """
    if "image_bits" not in a or "image_bits" not in b:
        relative = (one["standard_error"] / one["bits_per_dim"] for one in (a, b))
        return float(a["bits_per_dim"] / b["bits_per_dim"] * math.hypot(*relative))
    each_a, each_b = np.array(a["image_bits"]), np.array(b["image_bits"])
    residual = each_a - each_a.mean() / each_b.mean() * each_b
    return float(residual.std(ddof=1) / math.sqrt(len(each_b)) / each_b.mean())


def images_ratio(first: str, second: str) -> Measure:
    """Return the images seen by one kind ÷ another after equal time."""

    def measure(rows: AllRows) -> Quantity:
        runs = _trained(rows, (first, second))
        check_same_machine(runs)
        points = _at_mark(runs, "second_mark")
        a, b = (point["images_seen"] for point in points)
        said = f"{a:,} and {b:,} after {points[0]['seconds']:,.0f} seconds"
        return Quantity(a / b, a / b, a / b, said)

    return measure


def training_time_range(kinds: tuple[str, ...]) -> Measure:
    """Return the training time per image of the slowest kind ÷ that of the fastest."""

    def measure(rows: AllRows) -> Quantity:
        runs = {kind: _row(rows, f"train {kind}") for kind in kinds}
        check_same_machine(runs.values())
        each = {kind: run["seconds"] / run["steps"] / run["batch"] for kind, run in runs.items()}
        value = max(each.values()) / min(each.values())
        said = ", ".join(f"{kind} {number(1e3 * one)} ms" for kind, one in each.items())
        return Quantity(value, value, value, said)

    return measure


def error_difference(first: tuple[str, ...], second: str) -> Measure:
    """Return the lowest error rate of the first encoders minus the second's, in points."""

    def measure(rows: AllRows) -> Quantity:
        runs = [_row(rows, f"train {kind}") for kind in (*first, second)]
        if any(run.get("unfinished") for run in runs):
            raise NotMeasuredError("a training is unfinished")
        points = [run["evaluations"][-1] for run in runs]
        late = [
            run["kind"] for run, point in zip(runs, points, strict=True)
            if point["error_rate"] > BEGUN
        ]  # fmt: skip
        if late:
            raise NotMeasuredError(
                f"{' and '.join(late)} had not begun to learn: more than {100 * BEGUN:.0f} % errors"
            )
        if falling := [run["kind"] for run in runs if not _is_flat(run)]:
            raise NotMeasuredError(
                f"the errors of {', '.join(falling)} were still falling when the time was over"
            )
        last, differences = points[-1], []
        for point in points[:-1]:
            value = 100 * (point["error_rate"] - last["error_rate"])
            error = 100 * Z_95 * math.hypot(point["standard_error"], last["standard_error"])
            differences.append(Quantity(value, value - error, value + error))
        said = ", ".join(
            f"{run['kind']} {100 * point['error_rate']:.2f} % "
            f"({run['steps'] / run['epoch_steps']:.1f} epochs)"
            for run, point in zip(runs, points, strict=True)
        )
        return extreme(min, differences, said)

    return measure


def _is_flat(run: Row) -> bool:
    """Return True if an encoder's validation errors hardly fell in its last whole epoch."""
    rates = [one["error_rate"] for one in run["evaluations"] if "step_mark" in one]
    return len(rates) > 1 and rates[-1] > (1 - FLAT) * rates[-2]


def epoch_ratio(first: tuple[str, ...], second: str) -> Measure:
    """Return the training time per epoch of the fastest of the first encoders ÷ the second's."""

    def measure(rows: AllRows) -> Quantity:
        runs = [_row(rows, f"train {kind}") for kind in (*first, second)]
        check_same_machine(runs)
        seconds = {run["kind"]: epoch_seconds(run) for run in runs}
        fastest = min(first, key=lambda kind: float(median(seconds[kind])))
        said = ", ".join(f"{kind} {number(median(seconds[kind]))} s" for kind in (fastest, second))
        ratios = [timing_ratio(seconds[kind], seconds[second]) for kind in first]
        return extreme(min, ratios, said)

    return measure
