"""Figure 2: convergence of each kind of attention on a sequence copying task.

A sequence is a separator, n random symbols, the separator, and the same n symbols again; n is drawn
per sequence, up to half the length. Only the copy counts in the loss, because only it is
predictable.
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
POINT_STEPS = 20  # steps averaged in one point of a loss curve
LEARNED_LOSS = 0.1  # nats per symbol; guessing one of ten symbols gives 2.3


@dataclass(frozen=True, kw_only=True)
class CopyTaskSettings:
    """Settings: sequence length, size of the network, and training with RAdam as in the paper."""

    length: int = 128
    n_layers: int = 4
    n_heads: int = 8
    d_model: int = 256
    d_ff: int = 1024
    batch: int = 64
    steps: int = 8000
    learning_rate: float = 1e-3
    lower_after: int = 3000  # steps until the learning rate falls to a tenth
    seeds: int = 3
    kinds: tuple[str, ...] = ("softmax", "lsh-1", "lsh-4", "linear")


class CopyNetwork(nn.Module):
    """Small transformer: symbols ``int64 [B, T]`` → logits of the next symbol ``[B, T, 11]``."""

    def __init__(self, kind: str, task: CopyTaskSettings) -> None:
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
        logits: Tensor = self.predictor(self.norm(self.blocks(x)))
        return logits


def sequences(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw sequences and a mask of their copied symbols, both ``[count, length + 1]``."""
    n = torch.randint(1, (length - 1) // 2 + 1, (count, 1), generator=generator)
    symbols = torch.randint(SYMBOLS, (count, length + 1), generator=generator)
    position = torch.arange(length + 1).expand(count, -1)
    copied = (position > n + 1) & (position <= 2 * n + 1)
    symbols = torch.where(copied, symbols.gather(1, (position - n - 1).clamp(min=0)), symbols)
    symbols[(position == 0) | (position == n + 1) | (position > 2 * n + 1)] = SEPARATOR
    return symbols, copied


def train_network(kind: str, seed: int, task: CopyTaskSettings, device: torch.device) -> Row:
    """Train a network and return its row.

    The row has the loss curve ``losses`` (nats per symbol, each the mean of ``every`` steps), the
    final ``loss`` and ``accuracy`` on new sequences, and the training time in ``seconds``.
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
    starts = range(0, len(losses) - POINT_STEPS + 1, POINT_STEPS)
    curve = [sum(losses[i : i + POINT_STEPS]) / POINT_STEPS for i in starts]
    seconds = clock(device) - began
    with torch.no_grad():
        loss, accuracy = _loss(network.eval(), task, 256, generator, device)
    return {
        "kind": kind, "seed": seed, "every": POINT_STEPS, "losses": [round(x, 5) for x in curve],
        "loss": loss.item(), "accuracy": accuracy.item(), "seconds": seconds,
    }  # fmt: skip


def _loss(
    network: nn.Module,
    task: CopyTaskSettings,
    count: int,
    generator: torch.Generator,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Return the mean loss of the copied symbols in nats, and their accuracy."""
    symbols, copied = (x.to(device) for x in sequences(count, task.length, generator))
    logits = network(symbols[:, :-1])[copied[:, 1:]]
    targets = symbols[copied]
    return F.cross_entropy(logits, targets), (logits.argmax(-1) == targets).float().mean()


class _Figure2(Experiment[CopyTaskSettings]):
    name = "figure2"
    title = "Figure 2: copying"
    inches = (7, 4.2)
    full = CopyTaskSettings()
    quick = CopyTaskSettings(
        length=12, n_layers=2, n_heads=2, d_model=64, d_ff=128, batch=32, steps=700,
        learning_rate=6e-3, lower_after=500, kinds=("softmax", "linear"),
    )  # fmt: skip

    def rows(
        self,
        settings: CopyTaskSettings,
        report: Report,
        data_dir: Path | None,
        device: torch.device,
    ) -> Rows:
        for seed in range(settings.seeds):
            for kind in settings.kinds:
                yield f"{kind} {seed}", partial(train_network, kind, seed, settings, device)

    def caption(self, s: Row) -> str:
        lsh_note = (
            " At this length the chunks of `lsh` contain all earlier positions, so it equals "
            "softmax attention with shared queries and keys."
            if s["length"] <= 64 and any(kind.startswith("lsh") for kind in s["kinds"])
            else ""
        )
        return (
            f"Copying up to {(s['length'] - 1) // 2} symbols out of ten, sequence length "
            f"{s['length']}; {network(s)}, batch size {s['batch']}, {s['steps']:,} steps of RAdam, "
            f"{s['seeds']} seeds. The loss counts the copied symbols only; guessing gives 2.30 "
            f"nats.{lsh_note}"
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for kind, runs in by_kind(rows.values()).items():
            step_seconds = fmean(run["seconds"] / len(run["losses"]) / run["every"] for run in runs)
            lines.append([
                kind,
                ", ".join(number(run["loss"]) for run in runs),
                ", ".join(f"{100 * run['accuracy']:.1f} %" for run in runs),
                number(1e3 * step_seconds),
            ])  # fmt: skip
        return markdown_table(
            ["attention", "final loss per seed", "accuracy", "ms per step"], lines
        )

    def verdicts(self, rows: dict[str, Row]) -> Iterable[Verdict]:
        kinds = by_kind(rows.values())
        for kind in ("softmax", "linear"):
            losses = [run["loss"] for run in kinds.get(kind, [])]
            if losses:
                yield Verdict(
                    f"{kind} attention learns to copy (loss ≤ {LEARNED_LOSS} for every seed)",
                    ", ".join(map(number, losses)), max(losses) <= LEARNED_LOSS,
                )  # fmt: skip

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        axes = figure.subplots()
        for index, (kind, runs) in enumerate(by_kind(rows.values()).items()):
            for run in runs:
                steps = [run["every"] * (i + 1) for i in range(len(run["losses"]))]
                label = kind if run is runs[0] else None
                axes.plot(steps, run["losses"], color=f"C{index}", alpha=0.7, label=label)
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats per symbol")
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()


FIGURE2 = _Figure2()
