"""Connectionist temporal classification (Graves et al. 2006): loss, decoding and error rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from scanline.model.paper.speech.corpus import Utterance

BLANK = 0


def batches(utterances: list[Utterance], size: int) -> list[list[Utterance]]:
    """Split utterances into batches of similar length, to minimize padding."""
    ordered = sorted(utterances, key=lambda utterance: len(utterance.features))
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def _encode(
    encoder: nn.Module, batch: list[Utterance], device: torch.device
) -> tuple[Tensor, Tensor]:
    x = pad_sequence([utterance.features for utterance in batch], batch_first=True)
    lengths = torch.tensor([len(utterance.features) for utterance in batch])
    log_p, lengths = encoder(x.to(device), lengths.to(device))
    return log_p, lengths


def ctc_loss(encoder: nn.Module, batch: list[Utterance], device: torch.device) -> Tensor:
    """Return the mean CTC loss in nats per phoneme."""
    log_p, lengths = _encode(encoder, batch, device)
    phonemes = torch.tensor([p for utterance in batch for p in utterance.phonemes], device=device)
    counts = torch.tensor([len(utterance.phonemes) for utterance in batch], device=device)
    return F.ctc_loss(log_p.transpose(0, 1), phonemes, lengths, counts, BLANK)


@torch.no_grad()
def greedy_decode(
    encoder: nn.Module, batch: list[Utterance], device: torch.device
) -> Iterator[list[int]]:
    """Yield the phonemes of each utterance by greedy decoding."""
    for log_p, length in zip(*_encode(encoder, batch, device), strict=True):
        yield collapse(log_p[:length].argmax(-1).tolist())


def collapse(frames: Sequence[int]) -> list[int]:
    """Convert frame labels to phonemes: merge repeated labels and remove blanks."""
    return [phoneme for phoneme, _ in groupby(frames) if phoneme != BLANK]


def edit_distance(decoded: Sequence[int], reference: Sequence[int]) -> int:
    """Return the Levenshtein distance between two phoneme sequences."""
    row = list(range(len(reference) + 1))
    for i, one in enumerate(decoded, 1):
        substituted = [c + (one != other) for c, other in zip(row, reference, strict=False)]
        row = [i, *(1 + cost for cost in row[1:])]
        for j, cost in enumerate(substituted, 1):
            row[j] = min(row[j], cost, 1 + row[j - 1])
    return row[-1]
