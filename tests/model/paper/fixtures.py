"""Shared settings of the paper tests: small networks and short experiments."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from scanline.model.paper.copy_task import FIGURE2
from scanline.model.paper.experiment import UnitRun
from scanline.model.paper.report import Report
from scanline.model.paper.scaling import ScalingSettings
from tests.conftest import tiny_config

CPU = torch.device("cpu")
SMALL = ScalingSettings(shortest=2**4, longest=2**6, n_heads=2, head_size=8, tokens=32, repeats=1)
TASK = replace(
    FIGURE2.presets["quick"], length=8, d_model=32, d_ff=32, steps=40, seconds=None, batch=16,
    test=16, first_mark=10,
)  # fmt: skip
NETWORK = tiny_config(
    input="previous", order="subpixel", channels=3, norm="post", positions="sinusoidal"
)


def unit_run(unit: str, settings: Any, folder: Path, data_dir: Path | None = None) -> UnitRun[Any]:
    """Return a run of a unit on the CPU, with its report in ``folder``."""
    return UnitRun(
        unit=unit, settings=settings, report=Report(folder, unit, asdict(settings)),
        data_dir=data_dir, device=CPU,
    )  # fmt: skip


def lengths(kind: str, power: float, scale: float = 1e-6) -> dict[str, dict[str, Any]]:
    """Return rows of figure 1 whose time and memory grow with a power of the length."""
    return {
        f"{kind} {n}": {
            "kind": kind, "length": n, "batch": 1, "implementation": "plain PyTorch",
            "seconds": [scale * n**power, 1.01 * scale * n**power, 1.02 * scale * n**power],
            "bytes": scale * n**power,
        }
        for n in (512, 1024, 2048, 4096)
    }  # fmt: skip


def drawn(
    data: str, method: str, seconds: float, batch: int = 1, device: str = "cpu"
) -> dict[str, dict[str, Any]]:
    """Return a row of the supplement: a batch drawn in some seconds, with a spread of 2 %."""
    return {
        f"{device} {data} {method} {batch}": {
            "method": method, "data": data, "device": device, "batch": batch,
            "seconds": [0.99 * seconds, seconds, 1.01 * seconds], "implementation": "plain PyTorch",
        }
    }  # fmt: skip


def trained(
    kind: str, bits: float, *, seconds: float = 1200.0, images: int = 8000
) -> dict[str, dict[str, Any]]:
    """Return a row of table 1 or 2, evaluated after equal images and equal time."""
    point = {"bits_per_dim": bits, "standard_error": 0.002, "images": 9_977}
    early = point | {"step_mark": 500, "steps": 500, "seconds": 9.0, "images_seen": 4000}
    late = point | {"second_mark": 600.0, "steps": 700, "seconds": 601.0, "images_seen": images}
    return {
        f"train {kind}": {
            "kind": kind, "batch": 8, "bf16": False, "steps": images // 8, "seconds": seconds,
            "losses": [[1, 1.0, 2.0]],
            "evaluations": [early, late],
        }
    }  # fmt: skip


def copied(kind: str, loss: float, steps: int = 4000) -> dict[str, dict[str, Any]]:
    """Return a row of figure 2."""
    point = {"step_mark": steps, "steps": steps, "seconds": 9.0, "loss": loss, "accuracy": 0.9}
    return {
        f"{kind} 0": {
            "kind": kind, "seed": 0, "steps": steps, "seconds": 9.0, "losses": [[20, 0.2, 2.0]],
            "evaluations": [point],
        }
    }  # fmt: skip


def recognized(kind: str, error_rate: float, epoch: float = 10.0) -> dict[str, dict[str, Any]]:
    """Return a row of table 3 after two epochs."""
    point = {"error_rate": error_rate, "standard_error": 0.001}
    return {
        f"train {kind}": {
            "kind": kind, "steps": 20, "epoch_steps": 10, "seconds": 2 * epoch, "losses": [],
            "corpus": {
                "train": 2, "validation": 2, "test": 2, "phonemes": 4, "mean_frames": 9.0,
                "max_frames": 9,
            },
            "evaluations": [
                point | {"step_mark": 10, "steps": 10, "seconds": epoch},
                point | {"step_mark": 20, "steps": 20, "seconds": 2 * epoch},
                point | {"steps": 20, "seconds": 2 * epoch},
            ],
        }
    }  # fmt: skip
