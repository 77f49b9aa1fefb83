"""Figure 2: convergence of each kind of attention on a sequence copying task.

A sequence is a separator, n random symbols, the separator, and the same n symbols again; n is drawn
per sequence, up to half the length. Only the copy counts in the loss, because only it is
predictable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.model.config import ModelConfig
from scanline.model.layers.block import Block
from scanline.model.layers.lsh import seed_hash_functions
from scanline.model.paper.budget import Budget, History, Marks, train
from scanline.model.paper.experiment import Experiment, Rows, UnitRun
from scanline.model.paper.kinds import attention_config
from scanline.model.paper.markdown import duration, markdown_table, network, number
from scanline.model.paper.report import Report, Row, by_kind

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SYMBOLS = 10
SEPARATOR, TOKENS = SYMBOLS, SYMBOLS + 1
POINT_STEPS = 20  # steps averaged in one point of a loss curve


@dataclass(frozen=True, kw_only=True)
class CopyTaskSettings:
    """Settings: sequence length, size of the network, and training with RAdam as in the paper."""

    length: int = 128
    n_layers: int = 4
    n_heads: int = 8
    d_model: int = 256
    d_ff: int = 1024
    batch: int = 64
    steps: int = 10_000
    seconds: float | None = None  # training time after which a kind stops earlier
    learning_rate: float = 1e-3
    lower_after: int = 3000  # steps until the learning rate falls to a tenth
    seeds: int = 1
    test: int = 1024  # new sequences to measure the loss on
    first_mark: int = 125  # steps after which the loss is first measured
    kinds: tuple[str, ...] = ("linear", "softmax", "lsh-1", "lsh-4")


class CopyNetwork(nn.Module):
    """Small transformer: symbols ``int64 [B, T]`` → logits of the next symbol ``[B, T, 11]``."""

    def __init__(self, kind: str, task: CopyTaskSettings) -> None:
        super().__init__()
        config = ModelConfig.from_dict(
            {
                "height": 1, "width": task.length, "n_layers": task.n_layers,
                "n_heads": task.n_heads, "d_model": task.d_model, "d_ff": task.d_ff,
            }
            | attention_config(kind)
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


class CopyTraining:
    """Training of one network with the paper's RAdam and schedule."""

    def __init__(self, kind: str, seed: int, task: CopyTaskSettings, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.task, self.seed, self.device, self.step = task, seed, device, 0
        self.generator = torch.Generator().manual_seed(seed)
        self.network = CopyNetwork(kind, task).to(device)
        self.optimizer = torch.optim.RAdam(self.network.parameters(), lr=task.learning_rate)

    def take_step(self) -> float:
        """Train on new sequences and return the loss in nats per symbol."""
        if self.step == self.task.lower_after:
            self.optimizer.param_groups[0]["lr"] = self.task.learning_rate / 10
        self.network.train()
        seed_hash_functions(self.seed, self.step)
        loss, _ = _loss(self.network, self.task, self.task.batch, self.generator, self.device)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Return all state that a continuation needs."""
        return {
            "step": self.step, "generator": self.generator.get_state(),
            "network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.step = saved["step"]
        self.generator.set_state(saved["generator"])
        self.network.load_state_dict(saved["network"])
        self.optimizer.load_state_dict(saved["optimizer"])


def train_one(
    kind: str, seed: int, task: CopyTaskSettings, report: Report, device: torch.device
) -> Row:
    """Train a network and return its row.

    The row has the curves of ``budget.History``, whose evaluations have the ``loss`` in nats per
    symbol and the ``accuracy`` on the same new sequences for every kind.
    """
    run = CopyTraining(kind, seed, task, device)

    @torch.no_grad()
    def measure(last: bool) -> Row:
        generator = torch.Generator().manual_seed(2**32 + seed)
        loss, accuracy = _loss(run.network.eval(), task, task.test, generator, device)
        return {"loss": loss.item(), "accuracy": accuracy.item()}

    def row(history: History) -> Row:
        return {"kind": kind, "seed": seed} | history.row()

    history = train(
        run,
        Budget(seconds=task.seconds, steps=task.steps),
        report.folder / str(seed),
        settings=report.facts["settings"],
        evaluate=measure,
        marks=Marks(step=task.first_mark),
        point_steps=POINT_STEPS,
        device=device,
        publish=lambda history: report.publish(f"{kind} {seed}", row(history)),
    )
    return row(history)


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

    def units(self, settings: CopyTaskSettings) -> list[str]:
        return list(settings.kinds)

    def rows(self, run: UnitRun[CopyTaskSettings]) -> Rows:
        for seed in range(run.settings.seeds):
            make = partial(train_one, run.unit, seed, run.settings, run.report, run.device)
            yield f"{run.unit} {seed}", make

    def caption(self, s: Row) -> str:
        lsh_note = (
            " At this length the chunks of `lsh` contain all earlier positions, so it equals "
            "softmax attention with shared queries and keys."
            if s["length"] <= 64
            else ""
        )
        limit = f", at most {duration(s['seconds'])} of training" if s["seconds"] else ""
        paper = "as in the paper" if s["length"] == 128 else "the paper's schedule is longer"
        return (
            f"Copying up to {(s['length'] - 1) // 2} symbols out of ten, sequence length "
            f"{s['length']}; {network(s)}, batch size {s['batch']}, {s['steps']:,} steps of RAdam"
            f"{limit}; the rate {s['learning_rate']:g} falls to a tenth after "
            f"{s['lower_after']:,} steps ({paper}); {s['seeds']} seed"
            f"{'s' if s['seeds'] > 1 else ''} per kind. The paper has 4 layers × 256, 8 heads, and "
            "a batch size of 64. The loss counts the copied symbols only; guessing gives 2.30 "
            f"nats.{lsh_note}"
        )

    def table(self, rows: dict[str, Row]) -> str:
        lines = []
        for kind, runs in by_kind(rows.values()).items():
            last = [run["evaluations"][-1] for run in runs]
            lines.append([
                kind,
                ", ".join(number(one["loss"]) for one in last),
                ", ".join(f"{100 * one['accuracy']:.1f} %" for one in last),
                ", ".join(f"{run['steps']:,}" for run in runs),
                number(1e3 * fmean(run["seconds"] / run["steps"] for run in runs)),
            ])  # fmt: skip
        head = ["attention", "loss of new sequences", "accuracy", "steps", "ms per step"]
        return markdown_table(head, lines)

    def plot(self, figure: Figure, rows: dict[str, Row]) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for index, (kind, runs) in enumerate(by_kind(rows.values()).items()):
            for run in runs:
                steps, seconds, losses = zip(*run["losses"], strict=True)
                style = {"color": f"C{index}", "alpha": 0.7}
                style["label"] = kind if run is runs[0] else None
                left.plot(steps, losses, **style)
                right.plot(seconds, losses, **style)
        left.set_xlabel("step")
        right.set_xlabel("training time, s")
        left.set_ylabel("loss, nats per symbol")
        for axes in (left, right):
            axes.set_yscale("log")
            axes.grid(alpha=0.3)
        left.legend()


FIGURE2 = _Figure2(
    {
        "quick": CopyTaskSettings(
            length=12, n_heads=2, d_model=64, d_ff=128, batch=16, steps=100_000, seconds=30,
            learning_rate=6e-3, lower_after=500, test=64, n_layers=2,
        ),
        "default": CopyTaskSettings(batch=16, seconds=21_600),
        "full": CopyTaskSettings(seeds=3),
    }
)  # fmt: skip
