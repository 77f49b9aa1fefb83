"""Claims of the paper that we judge, each by one quantity of our results."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scanline.model.paper import drawing_quantities as drawing
from scanline.model.paper import quantities as q
from scanline.model.paper.experiment import Mode
from scanline.model.paper.markdown import number
from scanline.model.paper.quantity import AllRows, NotMeasuredError, Quantity
from scanline.model.paper.result_files import BEST_FIRST, Results

REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
UNDECIDED, NOT_TESTED = "undecided", "not tested here"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the paper.

    Attributes:
        name: Short identifier.
        place: Where the paper makes the claim.
        text: The claim.
        quantity: Name of the quantity that decides it.
        paper: The paper's value of the quantity, or a dash.
        experiment: Name of the experiment that measures it.
        measure: Computes the quantity from the experiment's rows of one mode; raises
            ``NotMeasuredError`` with the reason if they do not contain it.
        above: The claim holds only if the quantity is greater than this.
        below: The claim holds only if the quantity is less than this.
        why: Our explanation, shown if the claim is not reproduced.
    """

    name: str
    place: str
    text: str
    quantity: str
    paper: str
    experiment: str
    measure: Callable[[AllRows], Quantity]
    above: float = -math.inf
    below: float = math.inf
    why: str = ""

    def holds(self, value: float) -> bool:
        """Return True if a value of the quantity is within the claim's limits."""
        return self.above < value < self.below

    @property
    def limits(self) -> str:
        """The values with which the claim holds."""
        parts = [f"> {number(self.above)}"] if self.above > -math.inf else []
        parts += [f"< {number(self.below)}"] if self.below < math.inf else []
        return " and ".join(parts)


@dataclass(frozen=True, kw_only=True)
class UntestedClaim:
    """A claim of the paper without a quantity here, with the reason."""

    place: str
    experiment: str
    text: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Judgement of a claim: one of the four verdicts, with our quantity or the reason."""

    claim: Claim
    verdict: str
    found: str
    mode: Mode | None = None


def judge(claim: Claim, results: Results) -> Verdict:
    """Judge a claim by the best mode that measured its quantity; quick results decide nothing.

    It is undecided if it holds at some values of the quantity's spread only.
    """
    reason = "not measured yet"
    for mode in BEST_FIRST:
        if measured := results.get(claim.experiment, {}).get(mode):
            if mode == "quick":
                reason = f"only quick results, which decide nothing; {reason}"
                break
            try:
                quantity = claim.measure(measured.rows)
            except NotMeasuredError as error:
                reason = str(error)
                continue
            held = {claim.holds(one) for one in (quantity.low, quantity.value, quantity.high)}
            verdict = UNDECIDED
            if len(held) == 1:
                verdict = REPRODUCED if True in held else NOT_REPRODUCED
            return Verdict(claim, verdict, quantity.text(), mode)
    return Verdict(claim, NOT_TESTED, reason)


COPYING = "Section 4.1.1, figure 2"
SCALING = "Section 4.1.2, figure 1"
MNIST = "Section 4.2.1, table 1"
CIFAR = "Section 4.2.2, table 2"
SPEECH = "Section 4.3, table 3"
EVOLUTION = "Supplement, figure 5"
STATEFUL = "Supplement, table 4"
ONE_IMAGE = "Supplement, table 5"

FUSED = "our softmax runs PyTorch's fused kernel, which the paper did not have"
SMALL_GAIN = "large batches speed up linear far less on a CPU core than on the paper's GPU"

CLAIMS = (
    Claim(
        name="copy-softmax", place=COPYING, experiment="figure2", paper="0",
        text="linear reaches the same loss as softmax",
        quantity="loss of linear minus loss of softmax, nats per symbol, after equal steps",
        measure=q.copy_difference("linear", "softmax"), above=-0.05, below=0.05,
    ),
    Claim(
        name="copy-lsh", place=COPYING, experiment="figure2", paper="–",
        text="linear reaches a lower loss than LSH",
        quantity="lowest loss of LSH minus loss of linear, nats per symbol, after equal steps",
        measure=q.copy_difference(("lsh-1", "lsh-4"), "linear"), above=0.05,
        why="we train with a batch size of 16 instead of 64, and the loss of linear is still "
        "falling. LSH-1's is far higher, but LSH-4's is about the same",
    ),
    Claim(
        name="softmax-time", place=SCALING, experiment="figure1", paper="2",
        text="the time of softmax grows quadratically with the length",
        quantity="exponent of the length, softmax with a T × T matrix",
        measure=q.exponent("softmax-matrix", "seconds"), above=1.8, below=2.4,
    ),
    Claim(
        name="linear-time", place=SCALING, experiment="figure1", paper="1",
        text="the time of linear grows linearly",
        quantity="exponent of the length, linear in plain PyTorch",
        measure=q.exponent("linear-pytorch", "seconds"), above=0.8, below=1.1,
    ),
    Claim(
        name="lsh-time", place=SCALING, experiment="figure1", paper="1",
        text="the time of LSH grows linearly",
        quantity="largest exponent of the length, LSH with 1, 4 and 8 rounds",
        measure=q.largest_exponent(("lsh-1", "lsh-4", "lsh-8"), "seconds"), above=0.8, below=1.1,
    ),
    Claim(
        name="softmax-memory", place=SCALING, experiment="figure1", paper="2",
        text="the memory of softmax grows quadratically",
        quantity="exponent of the length, softmax with a T × T matrix",
        measure=q.exponent("softmax-matrix", "bytes"), above=1.8, below=2.4,
    ),
    Claim(
        name="linear-memory", place=SCALING, experiment="figure1", paper="1",
        text="the memory of linear grows linearly",
        quantity="exponent of the length, linear in plain PyTorch",
        measure=q.exponent("linear-pytorch", "bytes"), above=0.8, below=1.1,
    ),
    Claim(
        name="always-faster", place=SCALING, experiment="figure1", paper="> 1",
        text="linear is faster than softmax and LSH at every length",
        quantity="smallest ratio of another kind's time to linear's, all in plain PyTorch",
        measure=q.smallest_ratio("seconds"), above=1,
        why="plain PyTorch stores the features and the sums between chunks, and the paper's kernel "
        "did not; our C++ is faster than all others at every length",
    ),
    Claim(
        name="always-smaller", place=SCALING, experiment="figure1", paper="> 1",
        text="linear needs less memory than softmax and LSH at every length",
        quantity="smallest ratio of another kind's memory to linear's, all in plain PyTorch",
        measure=q.smallest_ratio("bytes"), above=1,
        why="plain PyTorch stores the features and the sums between chunks, and the paper's kernel "
        "did not; our C++ needs less than LSH and than a T × T matrix",
    ),
    Claim(
        name="mnist-softmax", place=MNIST, experiment="table1", paper="1.037",
        text="MNIST: linear has almost the same bits/dim as softmax",
        quantity="bits/dim of linear ÷ softmax, after equal images",
        measure=q.bits_ratio("linear", "softmax", "images_seen", "mnist"), below=1.05,
        why="the trainings see less than an epoch, and the paper 250. Softmax learns more from the "
        "first images, and the ratio falls only after 4,000",
    ),
    Claim(
        name="mnist-lsh", place=f"{MNIST}; {EVOLUTION}", experiment="table1", paper="1.05",
        text="MNIST: linear has fewer bits/dim than LSH",
        quantity="lowest bits/dim of LSH ÷ linear, after equal images",
        measure=q.bits_ratio(("lsh-1", "lsh-4"), "linear", "images_seen", "mnist"), above=1,
        why="the trainings see less than an epoch, and the paper 250. LSH-4 learns more from the "
        "first images",
    ),
    Claim(
        name="mnist-train-time", place=EVOLUTION, experiment="table1", paper="–",
        text="MNIST: training takes about as long with every kind",
        quantity="slowest ÷ fastest kind, training time per image",
        measure=q.training_time_range(("linear", "softmax", "lsh-1", "lsh-4")), below=1.5,
        why=f"our linear runs in C++, {FUSED}, and our LSH is plain PyTorch",
    ),
    Claim(
        name="mnist-speed", place=MNIST, experiment="supplement", paper="317",
        text="MNIST: linear draws more than 300 times as many images/s as softmax",
        quantity="images/s of linear ÷ softmax, each at its best batch size measured",
        measure=drawing.speed_ratio("mnist", "linear", "softmax"), above=300, why=SMALL_GAIN,
    ),
    Claim(
        name="mnist-lsh-speed", place=MNIST, experiment="supplement", paper="1.51",
        text="MNIST: LSH-1 draws 1.5 times as many images/s as softmax",
        quantity="images/s of LSH-1 ÷ softmax",
        measure=drawing.speed_ratio("mnist", "lsh-1", "softmax"), above=1.45, why=FUSED,
    ),
    Claim(
        name="mnist-batch", place=MNIST, experiment="supplement", paper="10,000",
        text="MNIST: linear draws 10,000 images at once on one device",
        quantity="largest batch size drawn",
        measure=drawing.largest_batch("mnist", "linear"), above=9_999,
    ),
    Claim(
        name="cifar-images", place=CIFAR, experiment="table2", paper="3",
        text="CIFAR-10: linear completes 3 times as many epochs as softmax in the same time",
        quantity="images seen by linear ÷ softmax, after equal time",
        measure=q.images_ratio("linear", "softmax"), above=2.5,
    ),
    Claim(
        name="cifar-lsh-images", place=EVOLUTION, experiment="table2", paper="–",
        text="CIFAR-10: LSH-1 completes more epochs than softmax in the same time",
        quantity="images seen by LSH-1 ÷ softmax, after equal time",
        measure=q.images_ratio("lsh-1", "softmax"), above=1,
    ),
    Claim(
        name="cifar-softmax", place=CIFAR, experiment="table2", paper="1.021",
        text="CIFAR-10: linear has fewer bits/dim than softmax after the same time",
        quantity="bits/dim of softmax ÷ linear, after equal time",
        measure=q.bits_ratio("softmax", "linear", "second_mark", "cifar10"), above=1,
    ),
    Claim(
        name="cifar-lsh", place=f"{CIFAR}; {EVOLUTION}", experiment="table2", paper="1.024",
        text="CIFAR-10: LSH-1 has fewer bits/dim than softmax after the same time",
        quantity="bits/dim of softmax ÷ LSH-1, after equal time",
        measure=q.bits_ratio("softmax", "lsh-1", "second_mark", "cifar10"), above=1,
    ),
    Claim(
        name="cifar-speed", place=CIFAR, experiment="supplement", paper="4,462",
        text="CIFAR-10: linear draws more than 4,000 times as many images/s as softmax",
        quantity="images/s of linear ÷ softmax, each at its best batch size measured",
        measure=drawing.speed_ratio("cifar10", "linear", "softmax"), above=4_000, why=SMALL_GAIN,
    ),
    Claim(
        name="cifar-stateful", place=STATEFUL, experiment="supplement", paper="55.8",
        text="CIFAR-10: linear draws more than 50 times as many images/s as stateful-softmax",
        quantity="images/s of linear ÷ stateful-softmax, each at its best batch size measured",
        measure=drawing.speed_ratio("cifar10", "linear", "stateful-softmax"), above=50,
        why=SMALL_GAIN,
    ),
    *(
        Claim(
            name=f"{data}-stateful-softmax", place=STATEFUL, experiment="supplement", paper=paper,
            text=f"{title}: stateful-softmax draws many more images/s than softmax",
            quantity="images/s of stateful-softmax ÷ softmax, each at its best batch size measured",
            measure=drawing.speed_ratio(data, "stateful-softmax", "softmax"), above=2,
        )
        for data, title, paper in (("mnist", "MNIST", "16.8"), ("cifar10", "CIFAR-10", "80"))
    ),
    *(
        Claim(
            name=f"{data}-{device}-latency", place=ONE_IMAGE, experiment="supplement", paper=paper,
            text=f"{title}: linear is the fastest to draw one image on a {device_name}",
            quantity="seconds of the nearest other kind ÷ linear, batch size 1",
            measure=drawing.latency_lead(data, device), above=1,
        )
        for data, title, device, device_name, paper in (
            ("mnist", "MNIST", "cpu", "CPU", "1.35"),
            ("mnist", "MNIST", "cuda", "GPU", "1.40"),
            ("cifar10", "CIFAR-10", "cpu", "CPU", "1.59"),
            ("cifar10", "CIFAR-10", "cuda", "GPU", "1.15"),
        )
    ),
    *(
        Claim(
            name=f"{data}-gpu", place=ONE_IMAGE, experiment="supplement", paper=paper,
            text=f"{title}: linear draws one image faster on a CPU than on a GPU",
            quantity="seconds on the GPU ÷ on the CPU",
            measure=drawing.device_ratio(data, "linear"), above=1,
        )
        for data, title, paper in (("mnist", "MNIST", "1.33"), ("cifar10", "CIFAR-10", "1.36"))
    ),
    Claim(
        name="speech-lstm", place=SPEECH, experiment="table3", paper="2.86",
        text="linear has a lower phoneme error rate than the Bi-LSTM",
        quantity="final error rate of the Bi-LSTM minus linear's, percentage points",
        measure=q.error_difference(("bi-lstm",), "linear"), above=0,
    ),
    Claim(
        name="speech-lsh", place=SPEECH, experiment="table3", paper="1.25",
        text="linear has a lower phoneme error rate than LSH",
        quantity="final error rate of LSH-4 minus linear's, percentage points",
        measure=q.error_difference(("lsh-4",), "linear"), above=0,
    ),
    Claim(
        name="speech-softmax", place=SPEECH, experiment="table3", paper="2.96",
        text="softmax has the lowest phoneme error rate",
        quantity="lowest final error rate of the others minus softmax's, percentage points",
        measure=q.error_difference(("bi-lstm", "lsh-4", "linear"), "softmax"), above=0,
    ),
    Claim(
        name="speech-epoch", place=SPEECH, experiment="table3", paper="3.29",
        text="an epoch with linear is more than 3 times as fast as with softmax",
        quantity="training time per epoch, softmax ÷ linear",
        measure=q.epoch_ratio(("softmax",), "linear"), above=3,
        why=f"{FUSED}, and a small network spends most of its time outside attention at 800 frames",
    ),
    Claim(
        name="speech-fastest", place=SPEECH, experiment="table3", paper="1.27",
        text="an epoch with linear is faster than with the Bi-LSTM and with LSH",
        quantity="training time per epoch, faster of the two ÷ linear",
        measure=q.epoch_ratio(("bi-lstm", "lsh-4"), "linear"), above=1,
        why="a CPU loses little by computing an LSTM step by step, but a GPU, as in the paper, "
        "needs parallel work",
    ),
)  # fmt: skip

UNTESTED = (
    UntestedClaim(
        place=SCALING, experiment="figure1",
        text="softmax fits 4,096 positions into 11 GB, LSH-4 and LSH-8 fit 16,384",
        reason="needs a GPU with 11 GB",
    ),
    UntestedClaim(
        place=ONE_IMAGE, experiment="supplement",
        text="CIFAR-10: linear is almost 6.6 times as fast as softmax for one image",
        reason="needs a GPU; the paper's table has 300.1 s (softmax, GPU) and 45.1 s (linear, CPU)",
    ),
    UntestedClaim(
        place="Supplement, section 9", experiment="table1",
        text="LSH's unconditional samples have fewer variations",
        reason="needs networks trained much longer; `scanline train --attention lsh-4` trains one "
        "that draws",
    ),
)  # fmt: skip
