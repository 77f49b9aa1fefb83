"""Table 3's rows: encoders trained with CTC for the same time, their errors, and an epoch's time.

The paper's speech, the Wall Street Journal's, is licensed: the rows are of any folder of speech, or
of spoken digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import nn
from tqdm import tqdm

from scanline.model.paper.claims import SPEECH
from scanline.model.paper.experiment import Experiment, Rows, Verdict
from scanline.model.paper.markdown import markdown_table, number
from scanline.model.paper.report import Report, Row, timed, trained
from scanline.model.paper.speech.corpus import Corpus, Utterance, read_corpus
from scanline.model.paper.speech.ctc import batches, ctc_loss, edit_distance, recognise
from scanline.model.paper.speech.digits import synthesise
from scanline.model.paper.speech.encoder import KINDS, LSTM, Encoder, Sizes
from scanline.model.paper.speech.features import BANDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONG = 800  # frames of the paper's utterances, on average


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """The networks, the seconds that each is trained for, and how (RAdam, as the paper's).

    ``data`` is the name of a folder of speech, empty for digits: so many utterances to train on and
    to test with. The learning rate falls to 0 over the second half.
    """

    sizes: Sizes
    training_seconds: float
    batch: int
    learning_rate: float
    lstm_learning_rate: float
    digits: tuple[int, int]
    data: str = ""


def _describe(corpus: Corpus) -> Row:
    frames = [len(u.features) for u in corpus.train]
    return {
        "train": len(corpus.train), "test": len(corpus.test), "phonemes": len(corpus.phonemes),
        "mean_frames": fmean(frames), "most_frames": max(frames),
    }  # fmt: skip


class Training:
    """An encoder's way through a corpus, batch by batch of utterances that are about as long."""

    def __init__(
        self, kind: str, task: SpeechSettings, corpus: Corpus, device: torch.device
    ) -> None:
        torch.manual_seed(0)
        self.device = device
        self.encoder = Encoder(kind, task.sizes, corpus.features, len(corpus.phonemes)).to(device)
        rate = task.lstm_learning_rate if kind == LSTM else task.learning_rate
        self.optimizer = torch.optim.RAdam(self.encoder.parameters(), lr=rate)
        self.batches = batches(corpus.train, task.batch)
        self.order = torch.Generator().manual_seed(0)

    def epoch(self, learning: Callable[[], object] | None = None) -> None:
        """Take every batch once, in an order of its own; ``learning`` is called after each."""
        for i in torch.randperm(len(self.batches), generator=self.order).tolist():
            self.optimizer.zero_grad()
            ctc_loss(self.encoder, self.batches[i], self.device).backward()
            nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
            self.optimizer.step()
            if learning:
                learning()


def _train(
    kind: str, task: SpeechSettings, corpus: Corpus, epochs: int, device: torch.device
) -> Row:
    """Train for so many epochs, and count the phonemes that are wrong in test utterances."""
    training = Training(kind, task, corpus, device)
    steps = epochs * len(training.batches)
    falling = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: min(1.0, 2 * (1 - step / steps))
    )
    for _ in tqdm(range(epochs), desc=kind, unit="epoch", leave=False, disable=None):
        training.epoch(falling.step)
    errors, counts = [], []
    for batch in batches(corpus.test, task.batch):
        for utterance, said in zip(batch, recognise(training.encoder, batch, device), strict=True):
            errors.append(edit_distance(said, utterance.phonemes))
            counts.append(len(utterance.phonemes))
    rate = sum(errors) / sum(counts)
    spread = sum((e - rate * n) ** 2 for e, n in zip(errors, counts, strict=True))
    return {
        "kind": kind, "epochs": epochs, "error_rate": rate,
        "standard_error": math.sqrt(spread) / sum(counts),
    }  # fmt: skip


def _time_long(kind: str, task: SpeechSettings, device: torch.device) -> Row:
    """Time a forward and backward pass over an utterance as long as the paper's, frame by frame."""
    encoder = Encoder(kind, replace(task.sizes, stack=1), BANDS, phonemes=40).to(device)
    batch = [Utterance(torch.randn(LONG, BANDS), [1 + n % 40 for n in range(LONG // 10)])]
    return {
        "kind": kind, "frames": LONG,
        "seconds": timed(lambda: ctc_loss(encoder, batch, device).backward(), device, repeats=2),
    }  # fmt: skip


class _Table3(Experiment[SpeechSettings]):
    name = "table3"
    title = "Table 3: speech"
    full = SpeechSettings(
        sizes=Sizes(stack=1, n_layers=9, n_heads=6, d_model=192, lstm_layers=3, lstm_size=320),
        training_seconds=4 * 3600, batch=16, learning_rate=1e-4, lstm_learning_rate=1e-3,
        digits=(20_000, 1_000),
    )  # fmt: skip
    quick = SpeechSettings(
        sizes=Sizes(stack=3, n_layers=2, n_heads=4, d_model=64, lstm_layers=1, lstm_size=96),
        training_seconds=45, batch=4, learning_rate=2e-3, lstm_learning_rate=5e-3,
        digits=(240, 60),
    )  # fmt: skip

    def settings(self, quick: bool, data_dir: Path | None) -> SpeechSettings:
        task = super().settings(quick, data_dir)
        return replace(task, data=data_dir.resolve().name) if data_dir else task

    def rows(
        self, settings: SpeechSettings, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        """Give ``data``, then ``epoch``, ``pass``, ``train KIND``.

        Digits are kept in the report's folder, in one that is named by how many.
        """
        spoken = report.folder / "{}-digits-{}".format(*settings.digits)

        @cache
        def corpus() -> Corpus:
            if data_dir is None:
                synthesise(spoken, *settings.digits)
            return read_corpus(data_dir or spoken, settings.sizes.stack)

        def epoch(kind: str) -> Row:
            training = Training(kind, settings, corpus(), device)
            return {"kind": kind, "seconds": timed(training.epoch, device, repeats=2)}

        def train(kind: str) -> Row:
            epochs = round(settings.training_seconds / report.rows[f"epoch {kind}"]["seconds"])
            return _train(kind, settings, corpus(), max(1, epochs), device)

        yield "data", lambda: _describe(corpus())
        for kind in KINDS:
            yield f"epoch {kind}", partial(epoch, kind)
            yield f"pass {kind}", partial(_time_long, kind, settings, device)
            yield f"train {kind}", partial(train, kind)

    def caption(self, s: Row) -> str:
        sizes = s["sizes"]
        digits = (
            "Digits that espeak-ng spoke, for the Wall Street Journal is licensed: compare the "
            "order, not the numbers."
        )
        data = f"Speech of the folder `{s['data']}`." if s["data"] else digits
        stacked = f"; {sizes['stack']} frames at a time" if sizes["stack"] > 1 else ""
        return (
            f"{data} Each encoder sees all of an utterance ({sizes['n_layers']} layers × "
            f"{sizes['d_model']}, {sizes['n_heads']} heads; bi-lstm {sizes['lstm_layers']} × 2 × "
            f"{sizes['lstm_size']}{stacked}) and is trained with CTC for "
            f"{s['training_seconds']:g} seconds, batches of {s['batch']}; phonemes are the "
            "likeliest of each step (± standard error). The last column is a forward and backward "
            "pass over one utterance as long as the paper's are on average, frame by frame."
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for row in trained(rows):
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
            f"{markdown_table(head, lines)}\n\n{data['train']:,} utterances to train on, of "
            f"{data['mean_frames']:.0f} frames on average and {data['most_frames']} at most; "
            f"{data['test']:,} held out; {data['phonemes']} phonemes."
        )

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
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

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2)
        encoders = trained(rows)
        kinds = [row["kind"] for row in encoders]
        left.barh(
            kinds, [100 * row["error_rate"] for row in encoders],
            xerr=[100 * row["standard_error"] for row in encoders],
        )  # fmt: skip
        left.set_xlabel("phonemes wrong, %, after the same time")
        right.barh(kinds, [rows[f"epoch {kind}"]["seconds"] for kind in kinds])
        right.set_xlabel("seconds an epoch")
        for axes in (left, right):
            axes.grid(alpha=0.3, axis="x")


TABLE3 = _Table3()
