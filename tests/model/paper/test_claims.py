"""Tests of the verdicts: each follows its quantity to both sides of its line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from scanline.model.paper.claims import (
    CLAIMS,
    NOT_REPRODUCED,
    NOT_TESTED,
    REPRODUCED,
    UNDECIDED,
    Claim,
    judge,
)
from scanline.model.paper.experiment import Mode
from scanline.model.paper.result_files import Measured
from tests.model.paper.fixtures import copied, drawn, lengths, recognized, trained

Rows = dict[str, dict[str, Any]]


def results(experiment: str, rows: Rows, mode: Mode = "default") -> Any:
    report = {"rows": rows, "complete": True, "hardware": {"cpu": "a CPU"}}
    return {experiment: {mode: Measured({}, {"unit": report})}}


def copying(linear: float, softmax: float = 0.1, lsh: float = 0.3) -> Rows:
    kinds = {"linear": linear, "softmax": softmax, "lsh-1": 2.0, "lsh-4": lsh}
    return {key: row for kind, loss in kinds.items() for key, row in copied(kind, loss).items()}


def scaling(linear: float = 1.0, softmax: float = 2.0, lsh: float = 1.0) -> Rows:
    """Return rows with these exponents; at every length linear has a half of the others."""
    return (
        lengths("linear-pytorch", linear, 0.5e-6) | lengths("softmax-matrix", softmax)
        | lengths("lsh-1", 1.0) | lengths("lsh-4", lsh) | lengths("lsh-8", 1.0)
    )  # fmt: skip


def slower_linear() -> Rows:
    """Return rows in which linear needs a little more than LSH-8 at one length only."""
    rows = scaling()
    row = rows["linear-pytorch 1024"]
    other = rows["lsh-8 1024"]
    row["seconds"] = [1.03 * one for one in other["seconds"]]
    row["bytes"] = 1.03 * other["bytes"]
    return rows


def images(linear: float, softmax: float = 1.0, lsh: float = 1.2, lsh1: float = 1.3) -> Rows:
    return (
        trained("linear", linear, images=24_000) | trained("softmax", softmax)
        | trained("lsh-1", lsh1) | trained("lsh-4", lsh)
    )  # fmt: skip


def slow_kind(times: float) -> Rows:
    """Return rows in which training with one kind takes some times as long per image."""
    rows = images(1.0)
    for row in rows.values():
        row["steps"], row["seconds"] = 1000, 1000.0
    rows["train lsh-4"]["seconds"] *= times
    return rows


def seen(times: float, kind: str = "linear") -> Rows:
    return trained(kind, 1.0, images=int(times * 8000)) | trained("softmax", 1.0)


def speeds(data: str, linear: float, other: str, batch: int = 1000) -> Rows:
    """Return rows in which linear draws some times as many images/s as another method."""
    many = drawn(data, "linear", batch / linear, batch)
    return drawn(data, "linear", 2.0) | many | drawn(data, other, 1.0)


def one_image(data: str, device: str, stateful: float) -> Rows:
    seconds = {
        "linear": 1.0, "stateful-softmax": stateful, "softmax": 9.0, "lsh-1": 9.0, "lsh-4": 9.0
    }  # fmt: skip
    return {
        key: row for method, one in seconds.items()
        for key, row in drawn(data, method, one, device=device).items()
    }  # fmt: skip


def two_devices(data: str, gpu: float) -> Rows:
    return drawn(data, "linear", gpu, device="cuda") | drawn(data, "linear", 1.0)


def speech(linear: float, softmax: float = 0.05, epoch: float = 1.0) -> Rows:
    return (
        recognized("linear", linear, epoch) | recognized("softmax", softmax, 3.3)
        | recognized("bi-lstm", 0.11, 1.3) | recognized("lsh-4", 0.09, 2.0)
    )  # fmt: skip


# Rows within the claim's limits and outside, as near to them as the spread allows.
EXAMPLES: dict[str, tuple[Rows, Rows]] = {
    "copy-softmax": (copying(0.14), copying(0.16)),
    "copy-lsh": (copying(0.24), copying(0.26)),
    "softmax-time": (scaling(softmax=1.85), scaling(softmax=1.75)),
    "linear-time": (scaling(linear=1.08), scaling(linear=1.12)),
    "lsh-time": (scaling(lsh=1.08), scaling(lsh=1.12)),
    "softmax-memory": (scaling(softmax=1.85), scaling(softmax=1.75)),
    "linear-memory": (scaling(linear=1.08), scaling(linear=1.12)),
    "always-faster": (scaling(), slower_linear()),
    "always-smaller": (scaling(), slower_linear()),
    "mnist-softmax": (images(1.04), images(1.06)),
    "mnist-lsh": (images(1.19), images(1.21)),
    "mnist-train-time": (slow_kind(1.4), slow_kind(1.6)),
    "mnist-speed": (speeds("mnist", 310, "softmax"), speeds("mnist", 290, "softmax")),
    "mnist-lsh-speed": (
        drawn("mnist", "lsh-1", 1.0) | drawn("mnist", "softmax", 1.5),
        drawn("mnist", "lsh-1", 1.0) | drawn("mnist", "softmax", 1.4),
    ),
    "mnist-batch": (drawn("mnist", "linear", 1.0, 10_000), drawn("mnist", "linear", 1.0, 4096)),
    "cifar-images": (seen(2.6), seen(2.4)),
    "cifar-lsh-images": (seen(1.1, "lsh-1"), seen(0.9, "lsh-1")),
    "cifar-softmax": (images(0.99), images(1.01)),
    "cifar-lsh": (images(1.0, lsh1=0.99), images(1.0, lsh1=1.01)),
    "cifar-speed": (speeds("cifar10", 4100, "softmax"), speeds("cifar10", 3900, "softmax")),
    "cifar-stateful": (
        speeds("cifar10", 52, "stateful-softmax"), speeds("cifar10", 48, "stateful-softmax"),
    ),
    **{
        f"{data}-stateful-softmax": (
            drawn(data, "stateful-softmax", 1.0) | drawn(data, "softmax", 2.1),
            drawn(data, "stateful-softmax", 1.0) | drawn(data, "softmax", 1.9),
        )
        for data in ("mnist", "cifar10")
    },
    **{
        f"{data}-{device}-latency": (one_image(data, device, 1.1), one_image(data, device, 0.9))
        for data in ("mnist", "cifar10")
        for device in ("cpu", "cuda")
    },
    "mnist-gpu": (two_devices("mnist", 1.1), two_devices("mnist", 0.9)),
    "cifar10-gpu": (two_devices("cifar10", 1.1), two_devices("cifar10", 0.9)),
    "speech-lstm": (speech(0.10), speech(0.12)),
    "speech-lsh": (speech(0.08), speech(0.10)),
    "speech-softmax": (speech(0.06), speech(0.04)),
    "speech-epoch": (speech(0.08, epoch=1.05), speech(0.08, epoch=1.15)),
    "speech-fastest": (speech(0.08, epoch=1.2), speech(0.08, epoch=1.4)),
}  # fmt: skip


def test_claim_is_undecided_if_a_limit_is_within_the_spread() -> None:
    for linear in (1.0499, 1.0501):
        judged = judge(claim_named("mnist-softmax"), results("table1", images(linear)))
        assert judged.verdict == UNDECIDED
        assert judged.found.startswith("1.05 (1.04 to 1.06): linear 1.050, softmax 1.000 after")


def test_every_claim_has_examples_and_limits() -> None:
    assert [claim.name for claim in CLAIMS] == list(EXAMPLES)
    assert all(claim.limits for claim in CLAIMS)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.name for claim in CLAIMS])
def test_verdict_follows_its_quantity(claim: Claim) -> None:
    for rows, verdict in zip(EXAMPLES[claim.name], (REPRODUCED, NOT_REPRODUCED), strict=True):
        judged = judge(claim, results(claim.experiment, rows))
        assert (judged.verdict, judged.mode) == (verdict, "default"), judged.found
        assert judged.found
        for_tests = judge(claim, results(claim.experiment, rows, "quick"))
        assert for_tests.verdict == NOT_TESTED
        assert "only quick results" in for_tests.found
    assert judge(claim, {}).verdict == NOT_TESTED


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.name for claim in CLAIMS])
def test_no_verdict_without_a_kind_that_the_claim_compares(claim: Claim) -> None:
    """Remove all rows of one kind or method after the other."""
    rows, _ = EXAMPLES[claim.name]
    names = {str(row.get("kind", row.get("method"))) for row in rows.values()}
    decided = {name: verdict_without(claim, rows, name) for name in names}
    assert NOT_TESTED in decided.values()
    assert set(decided.values()) <= {NOT_TESTED, REPRODUCED}


# Claims on time, which compare several kinds on one device.
ON_TIME = {
    "always-faster", "mnist-train-time", "mnist-speed", "mnist-lsh-speed", "cifar-images",
    "cifar-lsh-images", "cifar-softmax", "cifar-lsh", "cifar-speed", "cifar-stateful",
    "mnist-stateful-softmax", "cifar10-stateful-softmax", "mnist-cpu-latency",
    "mnist-cuda-latency", "cifar10-cpu-latency", "cifar10-cuda-latency", "speech-epoch",
    "speech-fastest",
}  # fmt: skip


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.name for claim in CLAIMS])
def test_times_of_different_machines_are_not_compared(claim: Claim) -> None:
    """Move each kind or method in turn to another machine."""
    rows, _ = EXAMPLES[claim.name]
    reports: dict[str, Any] = {}
    for key, row in rows.items():
        name = str(row.get("kind", row.get("method")))
        reports.setdefault(name, {"rows": {}, "hardware": {"cpu": "a CPU"}})["rows"][key] = row
    found = []
    for name in reports:
        moved = reports | {name: reports[name] | {"hardware": {"cpu": "another"}}}
        found.append(judge(claim, {claim.experiment: {"default": Measured({}, moved)}}))
    refused = [one for one in found if "were timed on different machines" in one.found]
    assert all(one.verdict == NOT_TESTED for one in refused)
    assert all(one.verdict == REPRODUCED for one in found if one not in refused)
    assert bool(refused) == (claim.name in ON_TIME)


def verdict_without(claim: Claim, rows: Mapping[str, Any], name: str) -> str:
    left = {k: row for k, row in rows.items() if row.get("kind", row.get("method")) != name}
    return judge(claim, results(claim.experiment, left)).verdict


def claim_named(name: str) -> Claim:
    return next(claim for claim in CLAIMS if claim.name == name)


def test_reasons_for_no_verdict() -> None:
    unlearned = judge(claim_named("copy-softmax"), results("figure2", copying(2.2, 2.2, 2.2)))
    assert unlearned.found == "after 4,000 steps no kind has learned to copy (lowest loss 2.2)"
    early = copied("linear", 0.1) | copied("softmax", 0.1, steps=2000)
    early["linear 0"]["evaluations"] += copied("linear", 0.1, 2000)["linear 0"]["evaluations"]
    judged = judge(claim_named("copy-softmax"), results("figure2", early))
    assert judged.found == "all kinds trained for 2,000 steps so far; a verdict needs 4,000"
    short = images(1.0)
    short["train softmax"]["seconds"] = 599.0
    judged = judge(claim_named("mnist-softmax"), results("table1", short))
    assert judged.found == "trained for 599 seconds so far; a verdict needs 600"
    weak = {key: row for kind in ("linear", "softmax") for key, row in trained(kind, 1.43).items()}
    judged = judge(claim_named("mnist-softmax"), results("table1", weak))
    assert judged.found.startswith("no kind predicts better than a table of pairs yet: 1.430")
    apart = images(1.0)
    for point in apart["train softmax"]["evaluations"]:
        point["images_seen"] += 1
    judged = judge(claim_named("mnist-softmax"), results("table1", apart))
    assert "not evaluated after equal training" in judged.found
    unfinished = speech(0.08)
    unfinished["train softmax"]["unfinished"] = True
    judged = judge(claim_named("speech-softmax"), results("table3", unfinished))
    assert judged.found == "a training is unfinished"
    late = speech(0.08) | recognized("lsh-4", 0.95)
    judged = judge(claim_named("speech-lsh"), results("table3", late))
    assert judged.found == "lsh-4 had not begun to learn: more than 90 % errors"
    falling = speech(0.08)
    falling["train lsh-4"]["evaluations"][0]["error_rate"] = 0.099  # a tenth more than at the end
    judged = judge(claim_named("speech-lsh"), results("table3", falling))
    assert judged.found == "the errors of lsh-4 were still falling when the time was over"


def test_extremes_count_the_spread_of_every_kind_and_length() -> None:
    """The extreme one is far within the limit, and another is not certainly within it."""
    rows = scaling()
    row, linear = rows["lsh-4 1024"], rows["linear-pytorch 1024"]["seconds"][0]
    row["seconds"] = [0.9 * linear, 2.5 * linear, 2.6 * linear]
    judged = judge(claim_named("always-faster"), results("figure1", rows))
    assert judged.verdict == UNDECIDED
    assert judged.found.startswith("2 (0.882 to 2.04): lsh-1 at 512")
    rows = scaling(lsh=1.05)
    longest = rows["lsh-8 4096"]["seconds"]
    longest[:] = [longest[1], longest[1], 1.5 * longest[1]]
    judged = judge(claim_named("lsh-time"), results("figure1", rows))
    assert judged.verdict == UNDECIDED
    assert judged.found.startswith("1.05 (1.04 to 1.2): lsh-1 1, lsh-4 1.05, lsh-8 1")


def test_copying_is_judged_by_all_seeds() -> None:
    rows = copying(0.1, 0.1, 0.3)
    for kind, loss in (("linear", 0.2), ("softmax", 0.1)):
        (row,) = copied(kind, loss).values()
        rows[f"{kind} 1"] = row | {"seed": 1}
    found = claim_named("copy-softmax").measure(rows)
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.0, 0.1))
    assert "the first of 2 seeds" in found.details


def test_evaluations_on_other_images_are_not_compared() -> None:
    """The last evaluation is on more images, and may be at a mark."""
    rows = images(1.0)
    rows["train linear"]["evaluations"][-1]["images"] = 1000
    rows["train softmax"]["unfinished"] = True
    judged = judge(claim_named("cifar-softmax"), results("table2", rows))
    assert "not evaluated after equal training" in judged.found


def test_finished_trainings_are_compared_at_their_ends() -> None:
    rows = images(1.0)
    for row in rows.values():
        end = {"seconds": 2701.0, "steps": 3000, "images_seen": 24_000}
        row["evaluations"].append(row["evaluations"][-1] | end | {"bits_per_dim": 0.9})
        del row["evaluations"][-1]["second_mark"]
    rows["train linear"]["evaluations"][-1]["bits_per_dim"] = 0.8
    judged = judge(claim_named("cifar-softmax"), results("table2", rows))
    assert "softmax 0.900, linear 0.800 after 2,701 seconds, one seed" in judged.found
    rows["train linear"]["unfinished"] = True
    judged = judge(claim_named("cifar-softmax"), results("table2", rows))
    assert "softmax 1.000, linear 1.000 after 601 seconds, one seed" in judged.found


def test_largest_batch_is_decided_by_memory_only() -> None:
    claim = claim_named("mnist-batch")
    rows = drawn("mnist", "linear", 1.0, 4096)
    (row,) = drawn("mnist", "linear", 1.0, 10_000).values()
    for reason, verdict in (("memory", NOT_REPRODUCED), ("4 s per step", NOT_TESTED)):
        stopped = {"cpu mnist linear 10000": row | {"stopped": reason}}
        assert judge(claim, results("supplement", rows | stopped)).verdict == verdict


def test_speeds_on_a_gpu_count_before_those_on_a_cpu() -> None:
    claim = claim_named("mnist-lsh-speed")
    cpu = drawn("mnist", "lsh-1", 1.0) | drawn("mnist", "softmax", 1.0)
    judged = judge(claim, results("supplement", cpu))
    assert judged.verdict == NOT_REPRODUCED
    assert judged.found.endswith(", on a CPU")
    gpu = drawn("mnist", "lsh-1", 1.0, device="cuda")
    assert judge(claim, results("supplement", cpu | gpu)).verdict == NOT_REPRODUCED
    gpu |= drawn("mnist", "softmax", 1.5, device="cuda")
    judged = judge(claim, results("supplement", cpu | gpu))
    assert judged.verdict == REPRODUCED
    assert "on a CPU" not in judged.found


def test_latency_needs_timings_of_one_image() -> None:
    rows = one_image("mnist", "cpu", 1.1)
    rows.pop("cpu mnist softmax 1")
    rows |= drawn("mnist", "softmax", 9.0, 16)
    judged = judge(claim_named("mnist-cpu-latency"), results("supplement", rows))
    assert judged.found == "softmax is not measured at batch size 1"


def test_spread_of_ratios_of_few_timings_is_that_of_all() -> None:
    judged = judge(claim_named("mnist-speed"), results("supplement", EXAMPLES["mnist-speed"][0]))
    assert judged.found.startswith("310 (304 to 316): linear 310 images/s at batch size 1,000")


def test_spread_of_ratios_of_bits_is_that_on_the_same_images() -> None:
    numbers = np.random.default_rng(0)
    each = numbers.uniform(0.5, 1.5, 500)  # softmax's bits/dim
    error = numbers.normal(0, 0.01, 500)  # of linear, which needs 4 % more
    rows = images(1.0)
    for kind, values in (("linear", 1.04 * each + error), ("softmax", each)):
        for point in rows[f"train {kind}"]["evaluations"]:
            point |= {"image_bits": values.tolist(), "bits_per_dim": values.mean()}
    found = claim_named("mnist-softmax").measure(rows)
    assert found.value == pytest.approx(1.04, abs=0.001)
    again = [
        (1.04 * each + error)[chosen].mean() / each[chosen].mean()
        for chosen in numbers.integers(0, 500, (2000, 500))
    ]
    assert found.high - found.value == pytest.approx(1.96 * np.std(again), rel=0.1)


def test_full_results_come_before_default_ones() -> None:
    good, bad = EXAMPLES["mnist-speed"]
    both = results("supplement", bad)
    both["supplement"]["full"] = results("supplement", good, "full")["supplement"]["full"]
    judged = judge(claim_named("mnist-speed"), both)
    assert (judged.verdict, judged.mode) == (REPRODUCED, "full")
    both["supplement"]["full"] = Measured({}, {"unit": {"rows": {}, "complete": False}})
    assert judge(claim_named("mnist-speed"), both).mode == "default"
