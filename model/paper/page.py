"""``PAPER.md``: the paper's claims, its figures, ours, and whether they hold here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from scanline.model.files import write_atomically
from scanline.model.paper.claims import IMAGES, SPEECH
from scanline.model.paper.drawing import NATIVE
from scanline.model.paper.experiments import EXPERIMENTS
from scanline.model.paper.lengths import slope
from scanline.model.paper.report import Row, read
from scanline.model.paper.tables import best_drawing, by_kind, markdown, number

LEARNED = 0.1  # nats a symbol: of ten symbols that are copied, a chance is 2.3

TITLES = {
    "figure1": "Figure 1: time and memory by length",
    "figure2": "Figure 2: copying",
    "table1": "Table 1: MNIST",
    "table2": "Table 2: CIFAR-10",
    "table3": "Table 3: speech",
    "supplement": "Supplement: one image, and more at once",
}


class Verdict(NamedTuple):
    """A claim of the paper, what was found here, and whether it holds."""

    claim: str
    found: str
    holds: bool


def write_page(folder: Path, page: Path) -> None:
    """Write the page from a folder's reports, whose plots it shows.

    Raises ``ValueError`` where there are none, or where they are of different machines.
    """
    write_atomically(page, make_page(folder, page.parent).encode())


def make_page(folder: Path, beside: Path) -> str:
    """Give the page's text from a folder's reports; plots are named as seen from ``beside``."""
    there = {name: folder / f"{name}.json" for name in EXPERIMENTS}
    reports = {name: read(path) for name, path in there.items() if path.exists()}
    if unfinished := [name for name, report in reports.items() if not report["complete"]]:
        raise ValueError(f"{', '.join(unfinished)} was broken off: run it again, and it goes on")
    if not reports:
        raise ValueError(f"no reports in {folder}: `scanline paper figure1 --quick` makes one")
    machines = [report["hardware"] for report in reports.values()]
    if any(machine != machines[0] for machine in machines):
        raise ValueError(f"the reports in {folder} are of different machines")
    machine = machines[0]
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    lines = [
        "# The paper, run again",
        "",
        "Katharopoulos, Vyas, Pappas and Fleuret, [*Transformers are RNNs*]"
        "(https://arxiv.org/abs/2006.16236), ICML 2020: its figures and tables, run by `scanline "
        "paper` and written by `scanline paper page`. No figure of ours is typed in.",
        "",
        f"Hardware: {machine['cpu']}, {machine['isa']}, {threads} of {machine['cores']} cores, "
        f"{machine['gpu'] or 'no GPU'}; PyTorch {machine['torch']}."
        + (
            " Times are processor time, not wall-clock time."
            if machine["threads"] == 1 and not machine["gpu"]
            else ""
        ),
        "",
        "| the paper's claim | here | holds |",
        "|---|---|---|",
    ]
    verdicts = [v for name, report in reports.items() for v in judge(name, report["rows"])]
    lines += [f"| {v.claim} | {v.found} | {'yes' if v.holds else '**no**'} |" for v in verdicts]
    for name, report in reports.items():
        said = caption(name, report["settings"]) + _multiplied(report["rows"])
        lines += ["", f"## {TITLES[name]}", "", said, ""]
        if (folder / f"{name}.png").exists():
            plot = Path(os.path.relpath(folder / f"{name}.png", beside)).as_posix()
            lines += [f"![{TITLES[name]}]({plot})", ""]
        lines.append(markdown(name, report["rows"]))
    return "\n".join(lines) + "\n"


def caption(name: str, s: Row) -> str:
    """Say what a report's rows are of, from its settings."""
    quick = " --quick" if s["quick"] else ""
    how = f"`scanline paper {name}{quick}`. "
    if name == "figure1":
        return how + (
            f"One forward and backward pass of causal attention, {s['n_heads']} heads of "
            f"{s['head_size']} features, one sequence. `softmax` is PyTorch's own kernel, which "
            "keeps no T × T matrix; with the whole matrix it is as the paper ran it. The slope is "
            "the power of the length, fitted to the four longest. Memory is what PyTorch's "
            "allocator held at most."
        )
    if name == "table3":
        sizes = s["sizes"]
        digits = (
            "Digits that espeak-ng spoke, for the Wall Street Journal is licensed: compare the "
            "order, not the numbers."
        )
        data = f"Speech of the folder `{s['data']}`." if s["data"] else digits
        stacked = f"; {sizes['stack']} frames at a time" if sizes["stack"] > 1 else ""
        return how + (
            f"{data} Each encoder sees all of an utterance ({sizes['n_layers']} layers × "
            f"{sizes['d_model']}, {sizes['n_heads']} heads; bi-lstm {sizes['lstm_layers']} × 2 × "
            f"{sizes['lstm_size']}{stacked}) and is trained with CTC for "
            f"{s['training_seconds']:g} seconds, batches of {s['batch']}; phonemes are the "
            "likeliest of each step (± standard error). The last column is a forward and backward "
            "pass over one utterance as long as the paper's are on average, frame by frame."
        )
    network = f"{s.get('n_layers')} layers × {s.get('d_model')}, {s.get('n_heads')} heads"
    if name == "figure2":
        sees = (
            " At this length the chunks of `lsh` hold every earlier position, so that it is "
            "softmax attention whose queries are its keys."
            if s["length"] <= 64 and any(kind.startswith("lsh") for kind in s["kinds"])
            else ""
        )
        return how + (
            f"Up to {(s['length'] - 1) // 2} of ten symbols, said twice: length {s['length']}; "
            f"{network}, batches of {s['batch']}, {s['steps']:,} steps of RAdam, {s['seeds']} "
            f"seeds. The loss counts the second time alone; chance is 2.30 nats.{sees}"
        )
    if name == "supplement":
        return how + (
            f"The paper's networks. {_timed(s)} In brackets, how many times as fast as `softmax` "
            "on the same device."
        )
    return how + (
        f"Each kind trained for {s['training_seconds']:g} seconds ({network}, images cut to "
        f"{s['crop']} × {s['crop']}, batches of {s['batch']}), bits/dim ± standard error on "
        f"{s['test_images']:,} test images. Images/s are those of the paper's own network "
        f"with random weights, each at its best of a few batch sizes; {_timed(s)} What an `lsh` "
        "position sees depends on where later ones fall, so its bits/dim are not quite a "
        "likelihood."
    )


def _timed(s: Row) -> str:
    return (
        "`softmax` and `lsh` run the whole network again for every step, the others keep a state; "
        f"a step is timed at {s['positions']} positions of an image and summed over all."
    )


def _multiplied(rows: dict[str, Row]) -> str:
    """Say what the C++ computed products in, which no row beside it does."""
    named = sorted({row["precision"] for row in rows.values() if "precision" in row})
    if not named:
        return ""
    return (
        f" Products of `{NATIVE}` are {' or '.join(named)} and its states float32; the other ways "
        "draw in float32 alone."
    )


def judge(name: str, rows: dict[str, Row]) -> Iterable[Verdict]:
    """Give the claims that an experiment's rows decide."""
    deciders: dict[str, Callable[[dict[str, Row]], Iterable[Verdict]]] = {
        "figure1": _judge_lengths, "figure2": _judge_copying, "supplement": _judge_latency,
        "table3": _judge_speech,
    }  # fmt: skip
    return deciders[name](rows) if name in deciders else _judge_images(name, rows)


def _judge_lengths(rows: dict[str, Row]) -> Iterable[Verdict]:
    kinds = by_kind(rows.values())
    for kind, what, least, most in (
        ("linear", "seconds", 0.0, 1.05),
        ("linear", "bytes", 0.0, 1.05),
        *((kind, "seconds", 0.0, 1.2) for kind in kinds if kind.startswith("lsh-")),
        ("softmax", "seconds", 1.8, 9.0),
        ("softmax, whole matrix", "bytes", 1.8, 9.0),
    ):
        power = slope(kinds.get(kind, []), what)
        if power is not None:
            grows = "time" if what == "seconds" else "memory"
            bound = f"power ≥ {least:g}" if least else f"power ≤ {most:g}"
            shape = "with the length's square" if least else "linearly"
            yield Verdict(
                f"the {grows} of {kind} attention grows {shape} ({bound})", f"{power:.3f}",
                least <= power <= most,
            )  # fmt: skip


def _judge_copying(rows: dict[str, Row]) -> Iterable[Verdict]:
    kinds = by_kind(rows.values())
    for kind in ("softmax", "linear"):
        losses = [run["loss"] for run in kinds.get(kind, [])]
        if losses:
            yield Verdict(
                f"{kind} attention learns to copy (loss ≤ {LEARNED} by every seed)",
                ", ".join(map(number, losses)), max(losses) <= LEARNED,
            )  # fmt: skip


def _judge_images(name: str, rows: dict[str, Row]) -> Iterable[Verdict]:
    data = "MNIST" if name == "table1" else "CIFAR-10"
    best = {way: row["images_per_second"] for way, row in best_drawing(rows).items()}
    order = ("linear", "stateful-softmax", "softmax", "lsh-1", "lsh-4")
    if all(way in best for way in order):
        found = " : ".join(number(best[way] / best["softmax"]) for way in order)
        theirs = " : ".join(
            number(IMAGES[name][way].images_per_second / IMAGES[name]["softmax"].images_per_second)
            for way in order
        )
        yield Verdict(
            f"{data} is drawn fastest by linear, then stateful-softmax, then the rest (images/s as "
            f"{', '.join(order)}: {theirs})", found,
            best["linear"] > best["stateful-softmax"] > max(best[way] for way in order[2:]),
        )  # fmt: skip
    bits = {row["kind"]: row["bits_per_dim"] for key, row in rows.items() if key[:6] == "train "}
    if {"linear", "softmax", "lsh-1", "lsh-4"} <= bits.keys() and name == "table1":
        yield Verdict(
            f"{data}: linear's bits/dim come near to softmax's and below lsh's",
            ", ".join(f"{kind} {value:.3f}" for kind, value in bits.items()),
            bits["linear"] < min(bits["lsh-1"], bits["lsh-4"])
            and bits["linear"] < 1.05 * bits["softmax"],
        )
    elif {"linear", "softmax"} <= bits.keys():
        yield Verdict(
            f"{data}: in the same time linear reaches fewer bits/dim than softmax",
            ", ".join(f"{kind} {value:.3f}" for kind, value in bits.items()),
            bits["linear"] < bits["softmax"],
        )


def _judge_speech(rows: dict[str, Row]) -> Iterable[Verdict]:
    wrong = {kind: 100 * rows[f"train {kind}"]["error_rate"] for kind in SPEECH}
    for other in ("lsh-4", "bi-lstm"):
        theirs = f"{SPEECH['linear'].error_percent:.2f} % : {SPEECH[other].error_percent:.2f} %"
        yield Verdict(
            f"speech: linear gets fewer phonemes wrong than {other} ({theirs})",
            f"{wrong['linear']:.2f} % : {wrong[other]:.2f} %", wrong["linear"] < wrong[other],
        )  # fmt: skip
    seconds = {kind: rows[f"epoch {kind}"]["seconds"] for kind in SPEECH}
    theirs = ", ".join(f"{kind} {number(claim.seconds)} s" for kind, claim in SPEECH.items())
    yield Verdict(
        f"speech: an epoch takes linear the least time ({theirs})",
        ", ".join(f"{kind} {number(value)} s" for kind, value in seconds.items()),
        seconds["linear"] == min(seconds.values()),
    )


def _judge_latency(rows: dict[str, Row]) -> Iterable[Verdict]:
    for device in ("cpu", "cuda"):
        for data in ("mnist", "cifar10"):
            seconds = {
                row["way"]: row["seconds"] for key, row in rows.items()
                if key.startswith(f"{device} {data} ") and row["batch"] == 1
            }  # fmt: skip
            others = ("softmax", "stateful-softmax", "lsh-1", "lsh-4")
            if "linear" in seconds and all(way in seconds for way in others):
                nearest = min(others, key=lambda way: seconds[way])
                yield Verdict(
                    f"one {data} image is drawn fastest by linear attention ({device})",
                    f"{number(seconds['linear'])} s; {nearest} {number(seconds[nearest])} s",
                    seconds["linear"] < seconds[nearest],
                )
