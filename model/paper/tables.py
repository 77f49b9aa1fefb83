"""The experiments' rows as tables in Markdown, the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from scanline.model.paper.claims import IMAGES, LATENCY, SPEECH
from scanline.model.paper.lengths import slope
from scanline.model.paper.report import Row


def by_kind(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Put rows that have a ``kind`` together by it, in their order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "kind" in row:
            found.setdefault(row["kind"], []).append(row)
    return found


def best_drawing(rows: dict[str, Row]) -> dict[str, Row]:
    """Give each way's fastest batch of a table's rows."""
    best: dict[str, Row] = {}
    for key, row in rows.items():
        if key.startswith("draw "):
            before = best.get(row["way"])
            if before is None or row["images_per_second"] > before["images_per_second"]:
                best[row["way"]] = row
    return best


def label(row: Row) -> str:
    """Give the name of a row's way to draw, and what it multiplies in if the row says so."""
    return f"{row['way']} ({row['precision']})" if "precision" in row else str(row["way"])


def markdown(name: str, rows: dict[str, Row]) -> str:
    """Give an experiment's rows as one or more tables."""
    make = {
        "figure1": _lengths, "figure2": _copying, "table3": _speech, "supplement": _latency,
    }.get(name)  # fmt: skip
    return make(rows) if make else _images(name, rows)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def number(value: float | None) -> str:
    """Give three figures of a number, a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _lengths(rows: dict[str, Row]) -> str:
    every = sorted({row["length"] for row in rows.values()})

    def part(what: str, scale: float, unit: str) -> str:
        lines = []
        for kind, points in by_kind(rows.values()).items():
            cells = [
                "–" if "stopped" in row else number(scale * row[what])
                for row in sorted(points, key=lambda row: row["length"])
            ]
            lines.append([kind, *cells, number(slope(points, what))])
        return _table([unit, *map(str, every), "slope"], lines)

    ends = sorted({row["stopped"] for row in rows.values() if "stopped" in row})
    why = f"\n\n–: not run, as it would take more than {' or '.join(ends)}." if ends else ""
    seconds = part("seconds", 1e3, "milliseconds a pass, by length")
    return f"{seconds}\n\n{part('bytes', 1e-6, 'MB held at most, by length')}{why}"


def _copying(rows: dict[str, Row]) -> str:
    lines = []
    for kind, runs in by_kind(rows.values()).items():
        lines.append([
            kind,
            ", ".join(number(run["loss"]) for run in runs),
            ", ".join(f"{100 * run['accuracy']:.1f} %" for run in runs),
            number(1e3 * fmean(run["seconds"] / len(run["losses"]) / run["every"] for run in runs)),
        ])  # fmt: skip
    return _table(["kind", "loss at the end, by seed", "right", "ms a step"], lines)


def _images(name: str, rows: dict[str, Row]) -> str:
    trained = {row["kind"]: row for key, row in rows.items() if key.startswith("train ")}
    best, claims = best_drawing(rows), IMAGES[name]
    lines = []
    for way, drawn in best.items():
        claim, learned = claims.get(way), trained.get(way.removeprefix("stateful-"))
        lines.append([
            label(drawn),
            number(claim.bits_per_dim) if claim else "–",
            f"{learned['bits_per_dim']:.3f} ± {learned['standard_error']:.3f}" if learned else "–",
            f"{learned['images_seen']:,}" if learned else "–",
            _speed(claim.images_per_second, claims["softmax"].images_per_second) if claim else "–",
            _speed(drawn["images_per_second"], best["softmax"]["images_per_second"]),
            str(drawn["batch"]),
        ])  # fmt: skip
    head = [
        "kind", "bits/dim, paper", "ours", "images trained on", "images/s, paper", "ours",
        "at once",
    ]  # fmt: skip
    return _table(head, lines)


def _speech(rows: dict[str, Row]) -> str:
    lines = []
    for key, row in rows.items():
        if key.startswith("train "):
            kind = row["kind"]
            rate, error = 100 * row["error_rate"], 100 * row["standard_error"]
            lines.append([
                kind,
                f"{SPEECH[kind].error_percent:.2f} %", f"{rate:.2f} ± {error:.2f} %",
                str(row["epochs"]),
                number(SPEECH[kind].seconds), number(rows[f"epoch {kind}"]["seconds"]),
                number(1e3 * rows[f"pass {kind}"]["seconds"]),
            ])  # fmt: skip
    data, long = rows["data"], next(row for key, row in rows.items() if key[:5] == "pass ")
    head = [
        "encoder", "phonemes wrong, paper", "ours", "epochs", "s an epoch, paper", "ours",
        f"ms for {long['frames']} frames",
    ]  # fmt: skip
    return (
        f"{_table(head, lines)}\n\n{data['train']:,} utterances to train on, of "
        f"{data['mean_frames']:.0f} frames on average and {data['most_frames']} at most; "
        f"{data['test']:,} held out; {data['phonemes']} phonemes."
    )


def _speed(speed: float, softmax: float) -> str:
    return f"{number(speed)} ({number(speed / softmax)} ×)"


def _latent(seconds: float, softmax: float) -> str:
    return f"{number(seconds)} ({number(softmax / seconds)} ×)"


def _latency(rows: dict[str, Row]) -> str:
    lines = []
    for device, data in dict.fromkeys((key.split()[0], key.split()[1]) for key in rows):
        mine = {
            row["way"]: row for key, row in rows.items()
            if key.startswith(f"{device} {data} ") and row["batch"] == 1
        }  # fmt: skip
        for way, row in mine.items():
            claim = LATENCY[data].get(way)
            softmax = LATENCY[data]["softmax"]
            place = int(device != "cpu")
            theirs = _latent(claim[place], softmax[place]) if claim else "–"
            ours = _latent(row["seconds"], mine["softmax"]["seconds"])
            lines.append([f"{data}, {device}: {label(row)}", theirs, ours])
    one = _table(["seconds for one image", "paper", "ours"], lines)
    swept: dict[str, dict[int, Row]] = {}
    for key, row in rows.items():
        if " mnist " in key:
            swept.setdefault(f"{row['device']}: {label(row)}", {})[row["batch"]] = row
    batches = sorted({batch for found in swept.values() for batch in found})
    more = [
        [way, *(number(found[b]["images_per_second"]) if b in found else "–" for b in batches)]
        for way, found in swept.items()
    ]
    return f"{one}\n\n{_table(['MNIST, images/s by images at once', *map(str, batches)], more)}"
