"""Table 3: phoneme error rate and epoch time of encoders trained with CTC for the same time.

The paper's corpus, the Wall Street Journal, needs a license. The table is measured on any corpus in
a folder, or on synthetic spoken digits.
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
from scanline.model.paper.speech.ctc import batches, ctc_loss, edit_distance, greedy_decode
from scanline.model.paper.speech.digits import synthesise
from scanline.model.paper.speech.encoder import KINDS, LSTM, Encoder, Sizes
from scanline.model.paper.speech.features import BANDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_FRAMES = 800  # average length of the paper's utterances


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """Settings of the table. Training uses RAdam as in the paper.

    Args:
        sizes: sizes of the encoders.
        training_seconds: training time of each encoder.
        batch: utterances per step.
        learning_rate: of the transformers; it falls to 0 over the second half of the training.
        lstm_learning_rate: of the LSTM.
        digits: numbers of synthetic utterances for training and testing.
        data: name of the corpus folder; "" for synthetic digits.
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
        "mean_frames": fmean(frames), "max_frames": max(frames),
    }  # fmt: skip


class EncoderTraining:
    """Training of one encoder, in batches of utterances of similar length."""

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

    def epoch(self, after_step: Callable[[], object] | None = None) -> None:
        """Train on every batch once, in random order; ``after_step`` is called after each."""
        for i in torch.randperm(len(self.batches), generator=self.order).tolist():
            self.optimizer.zero_grad()
            ctc_loss(self.encoder, self.batches[i], self.device).backward()
            nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
            self.optimizer.step()
            if after_step:
                after_step()


def _train(
    kind: str, task: SpeechSettings, corpus: Corpus, epochs: int, device: torch.device
) -> Row:
    """Train for a number of epochs, and measure the error rate on the test utterances."""
    training = EncoderTraining(kind, task, corpus, device)
    steps = epochs * len(training.batches)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        training.optimizer, lambda step: min(1.0, 2 * (1 - step / steps))
    )
    for _ in tqdm(range(epochs), desc=kind, unit="epoch", leave=False, disable=None):
        training.epoch(scheduler.step)
    errors, counts = [], []
    for batch in batches(corpus.test, task.batch):
        decoded = greedy_decode(training.encoder, batch, device)
        for utterance, phonemes in zip(batch, decoded, strict=True):
            errors.append(edit_distance(phonemes, utterance.phonemes))
            counts.append(len(utterance.phonemes))
    rate = sum(errors) / sum(counts)
    variance = sum((e - rate * n) ** 2 for e, n in zip(errors, counts, strict=True))
    return {
        "kind": kind, "epochs": epochs, "error_rate": rate,
        "standard_error": math.sqrt(variance) / sum(counts),
    }  # fmt: skip


def _time_pass(kind: str, task: SpeechSettings, device: torch.device) -> Row:
    """Time a forward and backward pass over an utterance of the paper's average length."""
    encoder = Encoder(kind, replace(task.sizes, stack=1), BANDS, phonemes=40).to(device)
    batch = [
        Utterance(torch.randn(PAPER_FRAMES, BANDS), [1 + n % 40 for n in range(PAPER_FRAMES // 10)])
    ]
    return {
        "kind": kind, "frames": PAPER_FRAMES,
        "seconds": timed(lambda: ctc_loss(encoder, batch, device).backward(), device, repeats=2),
    }  # fmt: skip


class _Table3(Experiment[SpeechSettings]):
    name = "table3"
    title = "Table 3: speech recognition"
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
        """Yield ``data``, then ``epoch KIND``, ``pass KIND`` and ``train KIND``.

        Synthetic digits are kept in a sub-folder of the report's folder, named after their numbers.
        """
        digits_folder = report.folder / "{}-digits-{}".format(*settings.digits)

        @cache
        def corpus() -> Corpus:
            if data_dir is None:
                synthesise(digits_folder, *settings.digits)
            return read_corpus(data_dir or digits_folder, settings.sizes.stack)

        def epoch(kind: str) -> Row:
            training = EncoderTraining(kind, settings, corpus(), device)
            return {"kind": kind, "seconds": timed(training.epoch, device, repeats=2)}

        def train(kind: str) -> Row:
            epochs = round(settings.training_seconds / report.rows[f"epoch {kind}"]["seconds"])
            return _train(kind, settings, corpus(), max(1, epochs), device)

        yield "data", lambda: _describe(corpus())
        for kind in KINDS:
            yield f"epoch {kind}", partial(epoch, kind)
            yield f"pass {kind}", partial(_time_pass, kind, settings, device)
            yield f"train {kind}", partial(train, kind)

    def caption(self, s: Row) -> str:
        sizes = s["sizes"]
        digits = (
            "Measured on digits spoken by espeak-ng, because the paper's corpus (Wall Street "
            "Journal) needs a license: compare the order, not the numbers."
        )
        data = f"Measured on the corpus `{s['data']}`." if s["data"] else digits
        stacked = f"; {sizes['stack']} frames per step" if sizes["stack"] > 1 else ""
        return (
            f"{data} Each bidirectional encoder ({sizes['n_layers']} layers × "
            f"{sizes['d_model']}, {sizes['n_heads']} heads; bi-lstm {sizes['lstm_layers']} × 2 × "
            f"{sizes['lstm_size']}{stacked}) was trained with CTC for {s['training_seconds']:g} "
            f"seconds, batch size {s['batch']}. The phoneme error rate (PER) of greedy decoding is "
            "given with its standard error. The last column is the time of a forward and backward "
            "pass over one utterance of the paper's average length, with one frame per step."
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
            "encoder", "PER, paper", "ours", "epochs", "s per epoch, paper", "ours",
            f"ms for {long['frames']} frames",
        ]  # fmt: skip
        return (
            f"{markdown_table(head, lines)}\n\nCorpus: {data['train']:,} training utterances with "
            f"{data['mean_frames']:.0f} frames on average and at most {data['max_frames']}; "
            f"{data['test']:,} test utterances; {data['phonemes']} phonemes."
        )

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        wrong = {kind: 100 * rows[f"train {kind}"]["error_rate"] for kind in SPEECH}
        for other in ("lsh-4", "bi-lstm"):
            theirs = f"{SPEECH['linear'].error_percent:.2f} % : {SPEECH[other].error_percent:.2f} %"
            yield Verdict(
                f"speech: linear has a lower phoneme error rate than {other} ({theirs})",
                f"{wrong['linear']:.2f} % : {wrong[other]:.2f} %", wrong["linear"] < wrong[other],
            )  # fmt: skip
        seconds = {kind: rows[f"epoch {kind}"]["seconds"] for kind in SPEECH}
        theirs = ", ".join(f"{kind} {number(claim.seconds)} s" for kind, claim in SPEECH.items())
        yield Verdict(
            f"speech: linear has the shortest epochs ({theirs})",
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
        left.set_xlabel("phoneme error rate, %, after the same time")
        right.barh(kinds, [rows[f"epoch {kind}"]["seconds"] for kind in kinds])
        right.set_xlabel("seconds per epoch")
        for axes in (left, right):
            axes.grid(alpha=0.3, axis="x")


TABLE3 = _Table3()
