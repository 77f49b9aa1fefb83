"""Table 3: phoneme error rate and epoch time of encoders trained with CTC.

The paper's corpus, the Wall Street Journal, needs a license. The table is measured on any corpus in
a folder, or on synthetic speech.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from scanline.model.layers.lsh import seed_hash_functions
from scanline.model.paper.budget import Budget, History, Marks, train
from scanline.model.paper.experiment import Experiment, Mode, Rows, UnitRun
from scanline.model.paper.markdown import duration, markdown_table, number
from scanline.model.paper.published import SPEECH
from scanline.model.paper.report import Report, Row, timings
from scanline.model.paper.speech.corpus import Corpus, Utterance, read_corpus
from scanline.model.paper.speech.ctc import batches, ctc_loss, edit_distance, greedy_decode
from scanline.model.paper.speech.encoder import KINDS, LSTM, Encoder, Sizes
from scanline.model.paper.speech.features import BANDS
from scanline.model.paper.speech.synthesis import synthesise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_FRAMES = 800  # average length of the paper's utterances
BEGUN = 0.9  # phoneme error rate, above which an encoder has not begun to learn
PATIENCE = 4  # epochs without a better validation error, after which a training ends


@dataclass(frozen=True, kw_only=True)
class SpeechSettings:
    """Settings of the table.

    The transformers train with RAdam and the LSTM with Adam. A learning rate is halved when the
    validation error stops decreasing.

    Attributes:
        sizes: Sizes of the encoders.
        seconds: Training time of each encoder; None to end when validation stops improving.
        batch: Utterances per step.
        learning_rate: Learning rate of the transformers.
        lstm_learning_rate: Learning rate of the LSTM.
        utterances: Numbers of synthetic utterances for training, validation and testing.
        words: Smallest and largest number of words of a synthetic utterance.
        data: Name of the corpus folder; "" for synthetic speech.
    """

    sizes: Sizes
    seconds: float | None
    batch: int
    learning_rate: float
    lstm_learning_rate: float
    utterances: tuple[int, int, int]
    words: tuple[int, int]
    data: str = ""


def _describe(corpus: Corpus) -> Row:
    frames = [len(u.features) for u in corpus.train]
    return {
        "train": len(corpus.train), "validation": len(corpus.validation),
        "test": len(corpus.test), "phonemes": len(corpus.phonemes),
        "mean_frames": fmean(frames), "max_frames": max(frames),
    }  # fmt: skip


class EncoderTraining:
    """Training of one encoder, in batches of utterances of similar length."""

    def __init__(
        self, kind: str, task: SpeechSettings, corpus: Corpus, device: torch.device
    ) -> None:
        torch.manual_seed(0)
        self.device, self.step, self.best = device, 0, math.inf
        self.encoder = Encoder(kind, task.sizes, corpus.features, len(corpus.phonemes)).to(device)
        if kind == LSTM:
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
                self.encoder.parameters(), lr=task.lstm_learning_rate
            )
        else:
            self.optimizer = torch.optim.RAdam(self.encoder.parameters(), lr=task.learning_rate)
        self.batches = batches(corpus.train, task.batch)

    def take_step(self) -> float:
        """Train on the next batch of the epoch's random order; return nats per phoneme."""
        epoch, index = divmod(self.step, len(self.batches))
        order = torch.randperm(len(self.batches), generator=torch.Generator().manual_seed(epoch))
        self.optimizer.zero_grad()
        self.encoder.train()
        seed_hash_functions(0, self.step)
        loss = ctc_loss(self.encoder, self.batches[int(order[index])], self.device)
        loss.backward()
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def validated(self, error_rate: float) -> None:
        """Halve the learning rate if the validation error has not decreased.

        Before an encoder has begun to learn, its error only fluctuates.
        """
        if error_rate >= self.best and self.best < BEGUN:
            for group in self.optimizer.param_groups:
                group["lr"] /= 2
        self.best = min(self.best, error_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return all state that a continuation needs."""
        return {
            "step": self.step, "best": self.best, "encoder": self.encoder.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.step, self.best = saved["step"], saved["best"]
        self.encoder.load_state_dict(saved["encoder"])
        self.optimizer.load_state_dict(saved["optimizer"])


def error_rate(
    encoder: nn.Module, utterances: list[Utterance], batch: int, device: torch.device
) -> Row:
    """Return the phoneme error rate of greedy decoding and its standard error."""
    errors, counts = [], []
    for some in batches(utterances, batch):
        decoded = greedy_decode(encoder, some, device)
        for utterance, phonemes in zip(some, decoded, strict=True):
            errors.append(edit_distance(phonemes, utterance.phonemes))
            counts.append(len(utterance.phonemes))
    rate = sum(errors) / sum(counts)
    variance = sum((e - rate * n) ** 2 for e, n in zip(errors, counts, strict=True))
    return {"error_rate": rate, "standard_error": math.sqrt(variance) / sum(counts)}


def train_one(
    kind: str, task: SpeechSettings, corpus: Corpus, report: Report, device: torch.device
) -> Row:
    """Train one encoder and return its row.

    The row has the curves of ``budget.History``. Its evaluations have the ``error_rate`` of the
    validation utterances after every epoch, and of the test utterances at the end.
    """
    run = EncoderTraining(kind, task, corpus, device)

    def measure(last: bool) -> Row:
        chosen = corpus.test if last else corpus.validation
        found = error_rate(run.encoder.eval(), chosen, task.batch, device)
        if not last:
            run.validated(found["error_rate"])
        return found

    def row(history: History) -> Row:
        facts = {"kind": kind, "epoch_steps": len(run.batches), "corpus": _describe(corpus)}
        return facts | history.row()

    def converged(history: History) -> bool:
        rates = [one["error_rate"] for one in history.evaluations]
        return len(rates) - 1 - rates.index(min(rates)) >= PATIENCE

    history = train(
        run,
        Budget(seconds=task.seconds),
        report.folder,
        settings=report.facts["settings"],
        evaluate=measure,
        marks=Marks(step=len(run.batches), every=True),
        point_steps=max(1, len(run.batches) // 20),
        device=device,
        publish=lambda history: report.publish(f"train {kind}", row(history)),
        converged=converged,
    )
    return row(history)


def epoch_seconds(row: Row) -> list[float]:
    """Return the training time of each epoch, or its estimate from the steps of less than one."""
    ends = [0.0] + [one["seconds"] for one in row["evaluations"] if "step_mark" in one]
    if len(ends) == 1:
        return [row["seconds"] / row["steps"] * row["epoch_steps"]]
    return [after - before for before, after in pairwise(ends)]


def _time_pass(kind: str, task: SpeechSettings, device: torch.device) -> Row:
    """Time a forward and backward pass over an utterance of the paper's average length."""
    encoder = Encoder(kind, replace(task.sizes, stack=1), BANDS, phonemes=40).to(device)
    batch = [
        Utterance(torch.randn(PAPER_FRAMES, BANDS), [1 + n % 40 for n in range(PAPER_FRAMES // 10)])
    ]
    return {
        "kind": kind, "frames": PAPER_FRAMES,
        "seconds": timings(lambda: ctc_loss(encoder, batch, device).backward(), device),
    }  # fmt: skip


class _Table3(Experiment[SpeechSettings]):
    name = "table3"
    title = "Table 3: speech recognition"

    def settings(self, mode: Mode, data_dir: Path | None) -> SpeechSettings:
        task = super().settings(mode, data_dir)
        return replace(task, data=data_dir.resolve().name) if data_dir else task

    def units(self, settings: SpeechSettings) -> list[str]:
        return list(KINDS)

    def rows(self, run: UnitRun[SpeechSettings]) -> Rows:
        """Yield ``train KIND`` and ``pass KIND``.

        Synthetic speech is kept in a folder beside the reports, named after its numbers of
        utterances and words.
        """
        settings = run.settings
        numbers = "-".join(map(str, (*settings.utterances, *settings.words)))
        speech = run.report.path.parent / f"speech-{numbers}"

        @cache
        def corpus() -> Corpus:
            if run.data_dir is None:
                synthesise(speech, settings.utterances, settings.words)
            return read_corpus(run.data_dir or speech, settings.sizes.stack)

        yield (
            f"train {run.unit}",
            lambda: train_one(run.unit, settings, corpus(), run.report, run.device),
        )
        yield f"pass {run.unit}", partial(_time_pass, run.unit, settings, run.device)

    def caption(self, s: Row) -> str:
        sizes = s["sizes"]
        synthetic = (
            "Measured on sentences of random common words, spoken by espeak-ng in 24 voices at "
            "random speeds and pitches, with noise of 0 to 20 dB below the voice, because the "
            "paper's corpus (Wall Street Journal) needs a license: compare the ranking, not "
            "the numbers."
        )
        data = f"Measured on the corpus `{s['data']}`." if s["data"] else synthetic
        stacked = f"; {sizes['stack']} frames per step" if sizes["stack"] > 1 else ""
        length = f"for at most {duration(s['seconds'])}, or " if s["seconds"] else ""
        return (
            f"{data} Each bidirectional encoder ({sizes['n_layers']} layers × "
            f"{sizes['d_model']}, {sizes['n_heads']} heads; bi-lstm {sizes['lstm_layers']} × 2 × "
            f"{sizes['lstm_size']}{stacked}) was trained with CTC {length}until the validation "
            f"error had not decreased for {PATIENCE} epochs, with RAdam (bi-lstm: Adam), batch "
            f"size {s['batch']}. Once that error is below {100 * BEGUN:.0f} %, the learning rate "
            "is halved after each epoch without a decrease. The weights are those at the end. The "
            "phoneme error rate (PER) of greedy decoding on the test "
            "utterances is given with its standard error. The last column is the time of a "
            "forward and backward pass over one utterance of the paper's average length, with one "
            "frame per step."
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines, corpus = [], None
        for row in _trained(rows):
            kind, last, corpus = row["kind"], row["evaluations"][-1], row["corpus"]
            one = rows.get(f"pass {kind}")
            rate = f"{100 * last['error_rate']:.2f} ± {100 * last['standard_error']:.2f} %"
            lines.append([
                kind,
                f"{SPEECH[kind].error_percent:.2f} %",
                "–" if row.get("unfinished") else rate,  # then `last` is a validation
                f"{row['steps'] / row['epoch_steps']:.1f}",
                number(SPEECH[kind].seconds), number(median(epoch_seconds(row))),
                number(1e3 * median(one["seconds"])) if one else "–",
            ])  # fmt: skip
        head = [
            "encoder", "validation PER, paper", "test PER, ours", "epochs", "s per epoch, paper",
            "ours", f"ms for {PAPER_FRAMES} frames",
        ]  # fmt: skip
        said = (
            f"\n\nCorpus: {corpus['train']:,} training utterances with "
            f"{corpus['mean_frames']:.0f} frames on average and at most {corpus['max_frames']:,}; "
            f"{corpus['validation']:,} validation and {corpus['test']:,} test utterances; "
            f"{corpus['phonemes']} phonemes."
            if corpus
            else ""
        )
        return markdown_table(head, lines) + said

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for row in _trained(rows):
            points = [one for one in row["evaluations"] if "step_mark" in one]
            rates = [100 * one["error_rate"] for one in points]
            left.plot([one["seconds"] for one in points], rates, "o-", markersize=3)
            epochs = [one["steps"] / row["epoch_steps"] for one in points]
            right.plot(epochs, rates, "o-", markersize=3, label=row["kind"])
        left.set_xlabel("training time, s")
        right.set_xlabel("epochs")
        left.set_ylabel("phoneme error rate of the validation utterances, %")
        for axes in (left, right):
            axes.grid(alpha=0.3)
        right.legend()


def _trained(rows: dict[str, Row]) -> list[Row]:
    return [row for key, row in rows.items() if key.startswith("train ")]


TABLE3 = _Table3(
    {
        "quick": SpeechSettings(
            sizes=Sizes(stack=3, n_layers=2, n_heads=2, d_model=64, lstm_layers=1, lstm_size=48),
            seconds=30, batch=4, learning_rate=2e-3, lstm_learning_rate=5e-3,
            utterances=(120, 12, 24), words=(2, 5),
        ),
        "default": SpeechSettings(
            sizes=Sizes(stack=1, n_layers=4, n_heads=4, d_model=128, lstm_layers=3, lstm_size=112),
            seconds=2400, batch=8, learning_rate=1e-3, lstm_learning_rate=1e-3,
            utterances=(4000, 100, 300), words=(15, 37),
        ),
        "full": SpeechSettings(
            sizes=Sizes(stack=1, n_layers=9, n_heads=6, d_model=192, lstm_layers=3, lstm_size=320),
            seconds=None, batch=16, learning_rate=1e-4, lstm_learning_rate=1e-3,
            utterances=(40_000, 500, 500), words=(15, 37),
        ),
    }
)  # fmt: skip
