"""Table 3's rows: encoders trained with CTC for the same time, their errors, and an epoch's time.

The paper's speech, the Wall Street Journal's, is licensed: the rows are of any folder of speech, or
of spoken digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import torch
from torch import nn
from tqdm import tqdm

from scanline.model.paper.report import Report, Row, timed
from scanline.model.paper.speech.corpus import Corpus, Utterance, read_corpus
from scanline.model.paper.speech.ctc import batches, ctc_loss, edit_distance, recognise
from scanline.model.paper.speech.digits import synthesise
from scanline.model.paper.speech.encoder import KINDS, LSTM, Encoder, Sizes
from scanline.model.paper.speech.features import BANDS

LONG = 800  # frames of the paper's utterances, on average


@dataclass(frozen=True, kw_only=True)
class Speech:
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


FULL = Speech(
    sizes=Sizes(stack=1, n_layers=9, n_heads=6, d_model=192, lstm_layers=3, lstm_size=320),
    training_seconds=4 * 3600, batch=16, learning_rate=1e-4, lstm_learning_rate=1e-3,
    digits=(20_000, 1_000),
)  # fmt: skip
QUICK = Speech(
    sizes=Sizes(stack=3, n_layers=2, n_heads=4, d_model=64, lstm_layers=1, lstm_size=96),
    training_seconds=45, batch=4, learning_rate=2e-3, lstm_learning_rate=5e-3,
    digits=(240, 60),
)  # fmt: skip


def rows(
    task: Speech, report: Report, folder: Path | None, device: torch.device
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """Give each row's key and what makes it: ``data``, then ``epoch``, ``pass``, ``train KIND``.

    Digits are kept beside the report, in a folder of ``table3`` that is named by how many.
    """
    spoken = report.path.parent / report.name / "{}-digits-{}".format(*task.digits)

    @cache
    def corpus() -> Corpus:
        if folder is None:
            synthesise(spoken, *task.digits)
        return read_corpus(folder or spoken, task.sizes.stack)

    yield "data", lambda: _describe(corpus())
    for kind in KINDS:

        def epoch(kind: str = kind) -> Row:
            training = Training(kind, task, corpus(), device)
            return {"kind": kind, "seconds": timed(training.epoch, device, repeats=2)}

        def train(kind: str = kind) -> Row:
            epochs = round(task.training_seconds / report.rows[f"epoch {kind}"]["seconds"])
            return _train(kind, task, corpus(), max(1, epochs), device)

        yield f"epoch {kind}", epoch
        yield f"pass {kind}", partial(_time_long, kind, task, device)
        yield f"train {kind}", train


def _describe(corpus: Corpus) -> Row:
    frames = [len(u.features) for u in corpus.train]
    return {
        "train": len(corpus.train), "test": len(corpus.test), "phonemes": len(corpus.phonemes),
        "mean_frames": fmean(frames), "most_frames": max(frames),
    }  # fmt: skip


class Training:
    """An encoder's way through a corpus, batch by batch of utterances that are about as long."""

    def __init__(self, kind: str, task: Speech, corpus: Corpus, device: torch.device) -> None:
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


def _train(kind: str, task: Speech, corpus: Corpus, epochs: int, device: torch.device) -> Row:
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


def _time_long(kind: str, task: Speech, device: torch.device) -> Row:
    """Time a forward and backward pass over an utterance as long as the paper's, frame by frame."""
    encoder = Encoder(kind, replace(task.sizes, stack=1), BANDS, phonemes=40).to(device)
    batch = [Utterance(torch.randn(LONG, BANDS), [1 + n % 40 for n in range(LONG // 10)])]
    return {
        "kind": kind, "frames": LONG,
        "seconds": timed(lambda: ctc_loss(encoder, batch, device).backward(), device, repeats=2),
    }  # fmt: skip
