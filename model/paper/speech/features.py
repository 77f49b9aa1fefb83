"""Log-mel filterbank features as in the paper: 40 per frame, one frame every 10 ms."""

from __future__ import annotations

import torch
from torch import Tensor

BANDS = 40
WINDOW, HOP = 0.025, 0.010  # seconds
FLOOR = 1e-6  # added to a band's energy, to keep the logarithm of silence finite


def to_mel(hertz: Tensor) -> Tensor:
    """Convert a frequency in Hz to mel; 1,000 Hz are 1,000 mel."""
    return 2595 * (1 + hertz / 700).log10()


def mel_filters(bins: int, rate: int, bands: int = BANDS) -> Tensor:
    """Create triangular filters of height 1, spaced evenly in mel, as float32 ``[bands, bins]``.

    Args:
        bins: Number of bins of the spectrum, from 0 to ``rate`` / 2.
        rate: Sample rate in Hz.
        bands: Number of filters; each ends at the centers of its neighbours.
    """
    mel = to_mel(torch.linspace(0, rate / 2, bins, dtype=torch.float64))
    spacing = mel[-1] / (bands + 1)
    centres = spacing * torch.arange(1, bands + 1).unsqueeze(1)
    return (1 - (mel - centres).abs() / spacing).clamp(min=0).float()


def log_mel(samples: Tensor, rate: int) -> Tensor:
    """Compute natural-log mel features of samples in [-1, 1] at ``rate`` Hz: ``[frames, 40]``."""
    window = round(WINDOW * rate)
    size = 1 << (window - 1).bit_length()
    spectrum = torch.stft(
        samples.float(), size, round(HOP * rate), window, torch.hann_window(window),
        pad_mode="constant", return_complex=True,
    )  # fmt: skip
    energy = mel_filters(size // 2 + 1, rate) @ spectrum.abs().square()
    return (energy + FLOOR).log().T
