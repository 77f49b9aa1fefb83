"""Page ``docs/paper.md``: the paper's claims and results beside ours."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from scanline.model.atomic_files import write_atomically
from scanline.model.paper.claims import (
    CLAIMS,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    UNDECIDED,
    UNTESTED,
    Claim,
    Verdict,
    judge,
)
from scanline.model.paper.experiment import Experiment
from scanline.model.paper.markdown import markdown_table
from scanline.model.paper.report import Row
from scanline.model.paper.result_files import BEST_FIRST, Measured, Results, read_results
from scanline.model.paper.runner import EXPERIMENTS

INTRODUCTION = (
    "This page compares the claims, figures and tables of Katharopoulos, Vyas, Pappas and Fleuret, "
    "[*Transformers are RNNs*](https://arxiv.org/abs/2006.16236) (ICML 2020), with our "
    "measurements.[^summaries] The kinds of attention are `linear` (the paper's), `softmax`, "
    "`lsh-N` (Reformer with N rounds of hashing) and `stateful-softmax` (softmax that keeps "
    "earlier keys and values while it draws). `scanline paper` runs the experiments and `scanline "
    "paper page` generates "
    "this page from their reports, so our measurements are not typed by hand. Compare rankings and "
    "ratios, not absolute numbers: the machines are not the paper's. The limits in "
    "brackets, within which a claim holds, are ours."
)
MODES_NOTE = """\
There are three modes:

- `--quick` takes about a minute per unit and decides no claim.
- The default takes up to 90 minutes of one core per unit, in figure 2 up to six hours, on whole \
images and sequences. Most of its networks are smaller than the paper's, and it trains each with \
one seed.
- `--full` has the paper's settings, \
[with some exceptions](training.md#reproducing-the-paper), and takes about 30 days on an H100.

How we measured:

- Training times are CPU seconds of a process with one thread, which other programs on the machine \
affect less than the time on the clock. Evaluations do not count. A claim on time compares units \
of one machine only.
- The spread of timings is a 95 % confidence interval of their median, or their range if there are \
fewer than nine. A ratio combines the ends of two, and the smallest or largest of several \
quantities those of all. Other spreads are 95 % confidence intervals \
over the test data, or the range of several trainings with different seeds. If there is one seed, \
the spread says nothing about others.
- On a CPU, causal `linear` trains in our C++, `softmax` in PyTorch's fused kernel, and everything \
else in plain PyTorch.
- `lsh` averages its rounds of hashing and draws new hash functions in every pass of the training, \
as in the authors' code. Units measured before that, or with an earlier, slower implementation, \
are marked below their table. The output of `lsh` at a position depends on the buckets of later \
positions, so its bits/dim are not exactly a likelihood."""
UNFINISHED = (
    "Numbers of unfinished trainings are intermediate: compare kinds only after equal time, images "
    "or steps."
)
OTHER_MACHINES = "The units were measured on different machines, so their times cannot be compared."
FOOTNOTE = (
    "[^summaries]: Summaries of the paper on the web contradict it. One in Chinese gives 0.83 and "
    "0.82 bits/dim for MNIST, 3.14 and 3.26 for CIFAR-10, and a phoneme error rate of 7.3 %; the "
    "paper's tables have 0.621 and 0.644, 3.47 and 3.40, and 8.08 %. Two describe an inhomogeneous "
    "polynomial feature map and random Fourier features as parts of the method; the paper only "
    "names the latter as future work. Both are rows of table 1."
)


def write_page(folder: Path, page: Path) -> None:
    """Write the plots into the folder of the results, and the page.

    Raises:
        ValueError: If there are no results, they cannot be compared, or matplotlib is not
            installed.
    """
    for name, modes in _read(folder).items():
        if best := next((modes[mode] for mode in BEST_FIRST if mode in modes), None):
            EXPERIMENTS[name].save_plot(best.rows, folder / f"{name}.png")
    write_atomically(page, render_page(folder, page.parent).encode())


def render_page(folder: Path, beside: Path) -> str:
    """Render the page from the results in a folder, with links to plots relative to ``beside``."""
    results = _read(folder)
    verdicts = [judge(claim, results) for claim in CLAIMS]
    parts = [
        "# Reproducing the paper", INTRODUCTION, _summary(verdicts), MODES_NOTE,
        "## The paper's claims", _claims(verdicts),
    ]  # fmt: skip
    for one in EXPERIMENTS.values():
        parts += [f"## {one.title}", *_section(one, results, folder, beside)]
    return "\n\n".join([*parts, FOOTNOTE]) + "\n"


def _units(one: Experiment[Any]) -> list[str]:
    return one.units(one.settings("default", None))


def _read(folder: Path) -> Results:
    results = read_results(folder, {name: _units(one) for name, one in EXPERIMENTS.items()})
    if not any(results.values()):
        raise ValueError(
            f"no reports in {folder}: run `scanline paper figure1 --quick`, for example"
        )
    return results


def _summary(verdicts: list[Verdict]) -> str:
    counts = Counter(one.verdict for one in verdicts)
    tested = counts[REPRODUCED] + counts[NOT_REPRODUCED] + counts[UNDECIDED]

    modes = [mode for mode in BEST_FIRST if any(one.mode == mode for one in verdicts)]
    how = f" Those tested were measured in the {' or '.join(modes)} mode." if modes else ""
    parts = [
        f"**{counts[REPRODUCED]} of the {tested} claims tested here are reproduced, "
        f"{counts[NOT_TESTED] + len(UNTESTED)} are not tested.**{how}",
        _counts_by_experiment(verdicts),
    ]
    by_verdict = {
        verdict: [one.claim for one in verdicts if one.verdict == verdict]
        for verdict in (NOT_REPRODUCED, UNDECIDED)
    }
    if claims := by_verdict[NOT_REPRODUCED]:
        parts += ["Not reproduced, with the probable reason:", _by_reason(claims)]
    if claims := by_verdict[UNDECIDED]:
        undecided = "\n".join(f"- *{claim.text}*" for claim in claims)
        parts += ["Undecided, because a limit of the claim is within the spread:", undecided]
    return "\n\n".join(parts)


def _by_reason(claims: list[Claim]) -> str:
    """List claims with our explanations; those with the same one share an item."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims:
        groups.setdefault(claim.why or claim.name, []).append(claim)
    return "\n".join(
        f"- {'; '.join(f'*{claim.text}*' for claim in group)}"
        + (f": {group[0].why}." if group[0].why else "")
        for group in groups.values()
    )


def _counts_by_experiment(verdicts: list[Verdict]) -> str:
    counts = Counter((one.claim.experiment, one.verdict) for one in verdicts)
    counts.update((one.experiment, NOT_TESTED) for one in UNTESTED)
    kinds = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, NOT_TESTED)
    return markdown_table(
        ["claims on", *kinds],
        [
            [one.title, *(str(counts[name, kind] or "–") for kind in kinds)]
            for name, one in EXPERIMENTS.items()
        ],
    )


def _claims(verdicts: list[Verdict]) -> str:
    lines = [
        [
            one.claim.text, one.claim.place, f"{one.claim.quantity} ({one.claim.limits})",
            one.claim.paper, one.found,
            one.verdict if one.verdict == REPRODUCED else f"**{one.verdict}**",
        ]
        for one in verdicts
    ]  # fmt: skip
    lines += [[one.text, one.place, "–", "–", one.reason, f"**{NOT_TESTED}**"] for one in UNTESTED]
    head = ["claim", "place", "quantity (the claim holds if)", "paper", "here (spread)", "verdict"]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *lines))


def _section(one: Experiment[Any], results: Results, folder: Path, beside: Path) -> list[str]:
    """Return the paragraphs of an experiment: tables of each mode, and what is missing."""
    modes, parts = results[one.name], []
    shown: set[str] = set()
    plotted = False
    for mode in BEST_FIRST:
        if mode not in modes:
            continue
        left = {unit: r for unit, r in modes[mode].reports.items() if unit not in shown}
        if not left:
            continue
        # Units measured in a better mode are not shown again.
        measured = Measured(modes[mode].settings, left)
        flag = "" if mode == "default" else f" --{mode}"
        said = one.caption(measured.settings)
        parts.append(f"**{mode}**: `scanline paper {one.name}{flag}`. {said}")
        if not plotted and (folder / f"{one.name}.png").exists():
            plot = Path(os.path.relpath(folder / f"{one.name}.png", beside)).as_posix()
            parts.append(f"![{one.title}]({plot})")
        plotted = True
        parts += [one.table(measured.rows), _provenance(measured)]
        machines = [report["hardware"] for report in left.values()]
        if any(machine != machines[0] for machine in machines):
            parts.append(OTHER_MACHINES)
        if any(row.get("unfinished") for row in measured.rows.values()):
            parts.append(UNFINISHED)
        shown |= set(left)
    have = set(modes["default"].reports if "default" in modes else ()) | set(
        modes["full"].reports if "full" in modes else ()
    )
    if missing := [unit for unit in _units(one) if unit not in have]:
        parts.append(
            f"Not measured in the default mode yet: {', '.join(f'`{unit}`' for unit in missing)}. "
            f"To measure one: `scanline paper {one.name} --unit {missing[0]} --out "
            "model/paper/results`."
        )
    return parts


def _provenance(measured: Measured) -> str:
    """List the machine, date and note of each group of units, and which are unfinished."""
    groups: dict[str, list[str]] = {}
    for unit, report in measured.reports.items():
        machine = report["hardware"]
        threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
        where = (
            f"{machine['cpu']} ({machine['isa']}), {threads} of {machine['cores']} cores, "
            f"{machine['gpu'] or 'no GPU'}, PyTorch {machine['torch']}, {report['date']}"
        )
        if "note" in report:
            where += f"; {report['note']}"
        groups.setdefault(where, []).append(f"`{unit}`{_state(report)}")
    return "\n".join(f"- {', '.join(units)}: {where}" for where, units in groups.items())


def _state(report: Row) -> str:
    """Describe the time that a unit's training took, and whether it is finished."""
    seconds = sum(row["seconds"] for row in report["rows"].values() if "evaluations" in row)
    parts = [f"{seconds:,.0f} s of training"] if seconds else []
    if not report["complete"]:
        parts.append("unfinished")
    return f" ({', '.join(parts)})" if parts else ""
