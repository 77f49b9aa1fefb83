"""Tests of the timing of sampling methods."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from scanline.model.decoders.native import NativeDecoder
from scanline.model.paper import latency, peers, report, sampling_speed
from tests.model.paper.fixtures import CPU, NETWORK


def test_every_sampling_method_agrees_with_its_network() -> None:
    found = sampling_speed.sampling_methods("cpu")
    peer = sampling_speed.PEER
    assert {*sampling_speed.STATEFUL, *sampling_speed.RECOMPUTED, sampling_speed.NATIVE, peer} == {
        *found
    }
    if peers.missing():
        found.remove(peer)
    for method in found:
        sampling_speed.check(method, NETWORK, CPU)


@pytest.mark.parametrize("method", ["stateful-softmax", "softmax", "linear", "lsh-1"])
def test_sampling_method_with_wrong_output_is_not_timed(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls = (
        sampling_speed.RecomputingSampler
        if method in sampling_speed.RECOMPUTED
        else sampling_speed.StatefulSampler
    )
    right = cls.step
    monkeypatch.setattr(cls, "step", lambda self, position: 1.01 * right(self, position))
    with pytest.raises(RuntimeError, match=f"{method} computes other parameters .* not timed"):
        sampling_speed.time_sampling(method, NETWORK, 2, 3, CPU)


def test_image_time_is_sum_of_step_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step at position p takes 2 + p seconds of a fake clock."""
    now = 0.0

    def step(self: sampling_speed.StatefulSampler, position: int) -> torch.Tensor:
        nonlocal now
        now += 2 + position
        return torch.empty(0)

    monkeypatch.setattr(sampling_speed, "check", lambda *_: None)
    monkeypatch.setattr(report, "clock", lambda _: now)
    monkeypatch.setattr(sampling_speed.StatefulSampler, "step", step)
    steps = NETWORK.steps
    row = sampling_speed.time_sampling("linear", NETWORK, 5, 4, CPU)
    positions = np.arange(steps)
    assert row["seconds"] == pytest.approx(3 * [float(np.sum(2 + positions))])
    assert latency.speed(row) == pytest.approx(5 / row["seconds"][0])


def test_native_decoder_with_wrong_bits_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = NativeDecoder.step

    def step(self: NativeDecoder, slots: Any, n: int) -> None:
        right(self, slots, n)
        self.bits += 1

    monkeypatch.setattr(NativeDecoder, "step", step)
    with pytest.raises(RuntimeError, match="bits/dim from the reference, so it is not timed"):
        sampling_speed.time_sampling(sampling_speed.NATIVE, NETWORK, 2, 3, CPU)


def test_native_row_names_its_precision() -> None:
    row = sampling_speed.time_sampling(sampling_speed.NATIVE, NETWORK, 2, 3, CPU)
    assert all(0 < seconds < math.inf for seconds in row["seconds"])
    network = sampling_speed.random_network("linear", NETWORK, CPU)
    assert row["implementation"] == f"Scanline's C++, {NativeDecoder(network, 1).precision}"
