"""Figure 2: learning to say a sequence of symbols once more, by each kind of attention.

A separator, n random symbols, the separator again, and the same n symbols, with n up to half the
length and drawn anew for every sequence. The loss counts the second time alone, which can be known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.model.config import ModelConfig
from scanline.model.layers.block import Block
from scanline.model.paper.experiment import Experiment, Rows, Verdict
from scanline.model.paper.markdown import markdown_table, network, number
from scanline.model.paper.report import Report, Row, by_kind, clock

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYMBOLS = 10
SEPARATOR, TOKENS = SYMBOLS, SYMBOLS + 1
EVERY = 20  # steps that one point of a curve is the mean of
LEARNED = 0.1  # nats a symbol: of ten symbols that are copied, a chance is 2.3


@dataclass(frozen=True, kw_only=True)
class CopyTask:
    """The task's length, the network's sizes, and how it is trained (with RAdam, as the paper)."""

    length: int = 128
    n_layers: int = 4
    n_heads: int = 8
    d_model: int = 256
    d_ff: int = 1024
    batch: int = 64
    steps: int = 8000
    learning_rate: float = 1e-3
    lower_after: int = 3000  # steps, and then a tenth of the learning rate
    seeds: int = 3
    kinds: tuple[str, ...] = ("softmax", "lsh-1", "lsh-4", "linear")


class CopyNetwork(nn.Module):
    """A small transformer over symbols: ``int64 [B, T]`` → log-odds of the next, ``[B, T, 11]``."""

    def __init__(self, kind: str, task: CopyTask) -> None:
        super().__init__()
        config = ModelConfig.from_dict(
            {
                "height": 1, "width": task.length, "attention": kind, "n_layers": task.n_layers,
                "n_heads": task.n_heads, "d_model": task.d_model, "d_ff": task.d_ff,
            }
        )  # fmt: skip
        self.embedding = nn.Embedding(TOKENS, task.d_model)
        self.positions = nn.Parameter(0.02 * torch.randn(task.length, task.d_model))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(task.n_layers)))
        self.norm = nn.LayerNorm(task.d_model)
        self.predictor = nn.Linear(task.d_model, TOKENS)

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.embedding(symbols) + self.positions[: symbols.shape[1]]
        log_odds: Tensor = self.predictor(self.norm(self.blocks(x)))
        return log_odds


def sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences of ``length`` + 1 symbols, and which are the second time: ``[count, …]``."""
    n = torch.randint(1, (length - 1) // 2 + 1, (count, 1), generator=generator)
    symbols = torch.randint(SYMBOLS, (count, length + 1), generator=generator)
    place = torch.arange(length + 1).expand(count, -1)
    again = (place > n + 1) & (place <= 2 * n + 1)
    symbols = torch.where(again, symbols.gather(1, (place - n - 1).clamp(min=0)), symbols)
    symbols[(place == 0) | (place == n + 1) | (place > 2 * n + 1)] = SEPARATOR
    return symbols, again


def train_network(kind: str, seed: int, task: CopyTask, device: torch.device) -> Row:
    """Train a network: its ``losses`` in nats a symbol, each the mean of some steps.

    ``loss`` and ``accuracy`` are over fresh sequences at the end, ``seconds`` what it all took.
    """
    began = clock(device)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = CopyNetwork(kind, task).to(device)
    optimizer = torch.optim.RAdam(network.parameters(), lr=task.learning_rate)
    losses: list[float] = []
    for step in range(task.steps):
        if step == task.lower_after:
            optimizer.param_groups[0]["lr"] = task.learning_rate / 10
        loss, _ = _loss(network, task, task.batch, generator, device)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    curve = [sum(losses[i : i + EVERY]) / EVERY for i in range(0, len(losses) - EVERY + 1, EVERY)]
    seconds = clock(device) - began
    with torch.no_grad():
        loss, accuracy = _loss(network.eval(), task, 256, generator, device)
    return {
        "kind": kind, "seed": seed, "every": EVERY, "losses": [round(x, 5) for x in curve],
        "loss": loss.item(), "accuracy": accuracy.item(), "seconds": seconds,
    }  # fmt: skip


def _loss(
    network: nn.Module, task: CopyTask, count: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Give the mean loss of the second time in nats, and the share of it that is right."""
    symbols, again = (x.to(device) for x in sequences(count, task.length, generator))
    log_odds = network(symbols[:, :-1])[again[:, 1:]]
    wanted = symbols[again]
    return F.cross_entropy(log_odds, wanted), (log_odds.argmax(-1) == wanted).float().mean()


class _Figure2(Experiment[CopyTask]):
    name = "figure2"
    title = "Figure 2: copying"
    inches = (7, 4.2)
    full = CopyTask()
    quick = CopyTask(
        length=12, n_layers=2, n_heads=2, d_model=64, d_ff=128, batch=32, steps=700,
        learning_rate=6e-3, lower_after=500, kinds=("softmax", "linear"),
    )  # fmt: skip

    def rows(
        self, settings: CopyTask, report: Report, data_dir: Path | None, device: torch.device
    ) -> Rows:
        for seed in range(settings.seeds):
            for kind in settings.kinds:
                yield f"{kind} {seed}", partial(train_network, kind, seed, settings, device)

    def caption(self, s: Row) -> str:
        sees = (
            " At this length the chunks of `lsh` hold every earlier position, so that it is "
            "softmax attention whose queries are its keys."
            if s["length"] <= 64 and any(kind.startswith("lsh") for kind in s["kinds"])
            else ""
        )
        return (
            f"Up to {(s['length'] - 1) // 2} of ten symbols, said twice: length {s['length']}; "
            f"{network(s)}, batches of {s['batch']}, {s['steps']:,} steps of RAdam, {s['seeds']} "
            f"seeds. The loss counts the second time alone; chance is 2.30 nats.{sees}"
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for kind, runs in by_kind(rows.values()).items():
            a_step = fmean(run["seconds"] / len(run["losses"]) / run["every"] for run in runs)
            lines.append([
                kind,
                ", ".join(number(run["loss"]) for run in runs),
                ", ".join(f"{100 * run['accuracy']:.1f} %" for run in runs),
                number(1e3 * a_step),
            ])  # fmt: skip
        return markdown_table(["kind", "loss at the end, by seed", "right", "ms a step"], lines)

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        kinds = by_kind(rows.values())
        for kind in ("softmax", "linear"):
            losses = [run["loss"] for run in kinds.get(kind, [])]
            if losses:
                yield Verdict(
                    f"{kind} attention learns to copy (loss ≤ {LEARNED} by every seed)",
                    ", ".join(map(number, losses)), max(losses) <= LEARNED,
                )  # fmt: skip

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        axes = figure.subplots()
        for index, (kind, runs) in enumerate(by_kind(rows.values()).items()):
            for run in runs:
                steps = [run["every"] * (i + 1) for i in range(len(run["losses"]))]
                label = kind if run is runs[0] else None
                axes.plot(steps, run["losses"], color=f"C{index}", alpha=0.7, label=label)
        axes.set_xlabel("step")
        axes.set_ylabel(f"loss, nats a symbol of {SYMBOLS}")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()


FIGURE2 = _Figure2()
