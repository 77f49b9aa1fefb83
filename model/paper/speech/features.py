"""Log-mel filterbank features of sound, as the paper has them: 40 a frame, a frame every 10 ms."""

from __future__ import annotations

import torch
from torch import Tensor

BANDS = 40
WINDOW, HOP = 0.025, 0.010  # seconds
FLOOR = 1e-6  # of a band's energy, for sound that is silent


def to_mel(hertz: Tensor) -> Tensor:
    """Give the pitch that a frequency is heard as: 1,000 Hz are 1,000 mel."""
    return 2595 * (1 + hertz / 700).log10()


def mel_filters(bins: int, rate: int, bands: int = BANDS) -> Tensor:
    """Give triangles over the ``bins`` of a spectrum that ends at half of ``rate`` Hz.

    Their centres are evenly spaced in mel, each triangle ends at its neighbours' centres, and its
    height is 1: float32 ``[bands, bins]``.
    """
    mel = to_mel(torch.linspace(0, rate / 2, bins, dtype=torch.float64))
    spacing = mel[-1] / (bands + 1)
    centres = spacing * torch.arange(1, bands + 1).unsqueeze(1)
    return (1 - (mel - centres).abs() / spacing).clamp(min=0).float()


def log_mel(samples: Tensor, rate: int) -> Tensor:
    """Give the features of sound between -1 and 1: float ``[samples]`` → float32 ``[frames, 40]``.

    ``rate`` is in samples a second; the logarithm is the natural one.
    """
    window = round(WINDOW * rate)
    size = 1 << (window - 1).bit_length()
    spectrum = torch.stft(
        samples.float(), size, round(HOP * rate), window, torch.hann_window(window),
        pad_mode="constant", return_complex=True,
    )  # fmt: skip
    energy = mel_filters(size // 2 + 1, rate) @ spectrum.abs().square()
    return (energy + FLOOR).log().T
