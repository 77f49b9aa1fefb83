"""Tests of log-mel features."""

from __future__ import annotations

import math

import pytest
import torch

from scanline.model.paper.speech.features import BANDS, log_mel, mel_filters, to_mel
from tests.conftest import assert_close


def test_mel_filters_are_triangles_evenly_spaced_in_mel() -> None:
    assert float(to_mel(torch.tensor(1000.0))) == pytest.approx(1000, abs=0.1)
    bins, rate = 4097, 16000
    filters = mel_filters(bins, rate)
    assert filters.shape == (BANDS, bins)
    hertz = torch.linspace(0, rate / 2, bins)
    centres = hertz[filters.argmax(1)]
    spacing = to_mel(centres).diff()
    torch.testing.assert_close(spacing, spacing.mean().expand(BANDS - 1), rtol=0.05, atol=0)
    between = (hertz >= centres[0]) & (hertz <= centres[-1])
    assert_close(filters.sum(0)[between], torch.ones(int(between.sum())))
    assert ((filters > 0).sum(0) <= 2).all()


@pytest.mark.parametrize(("rate", "band"), [(16000, 8), (22050, 25)])
def test_log_mel_of_tone_peaks_in_its_band_and_scales_with_energy(rate: int, band: int) -> None:
    bins = mel_filters(8193, rate)
    tone = float(torch.linspace(0, rate / 2, 8193)[bins[band].argmax()])
    sound = 0.25 * torch.sin(2 * math.pi * tone * torch.arange(rate) / rate)
    features = log_mel(sound, rate)
    assert features.shape == (1 + rate // round(0.01 * rate), BANDS)
    inside = features[5:-5]
    assert (inside.argmax(1) == band).all()
    louder = log_mel(2 * sound, rate)[5:-5, band] - inside[:, band]
    assert_close(louder, torch.full_like(louder, math.log(4)))
    assert log_mel(torch.zeros(rate), rate).isfinite().all()
