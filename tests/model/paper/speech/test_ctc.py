"""Tests of CTC: loss, decoding and edit distance."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from scanline.model.paper.speech.corpus import Utterance
from scanline.model.paper.speech.ctc import collapse, ctc_loss, edit_distance, greedy_decode
from tests.conftest import assert_close
from tests.model.paper.speech.fixtures import CPU


def test_frames_collapse_to_phonemes() -> None:
    assert collapse([0, 1, 1, 0, 1, 2, 2, 0]) == [1, 1, 2]
    assert collapse([3, 3, 3]) == [3]
    assert collapse([0, 0]) == collapse([]) == []


@pytest.mark.parametrize(
    ("decoded", "reference", "errors"),
    [
        ("", "", 0), ("abc", "abc", 0), ("", "ab", 2), ("ab", "", 2), ("abc", "ac", 1),
        ("ac", "abc", 1), ("abc", "adc", 1), ("ab", "ba", 2), ("kitten", "sitting", 3),
        ("sunday", "saturday", 3), ("aab", "ab", 1),
    ],
)  # fmt: skip
def test_edit_distance(decoded: str, reference: str, errors: int) -> None:
    assert edit_distance([*map(ord, decoded)], [*map(ord, reference)]) == errors


class FixedEncoder(nn.Module):
    """Encoder that returns fixed log-probabilities."""

    def __init__(self, log_p: Tensor) -> None:
        super().__init__()
        self.log_p = log_p

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_p, lengths


def test_ctc_loss_sums_over_all_alignments() -> None:
    log_p = torch.randn(2, 5, 3).double().log_softmax(-1)
    batch = [Utterance(torch.zeros(5, 1), [1, 1]), Utterance(torch.zeros(3, 1), [2])]
    expected = []
    for row, utterance in zip(log_p, batch, strict=True):
        frames = len(utterance.features)
        paths = [
            row[range(frames), path].sum()
            for path in itertools.product(range(3), repeat=frames)
            if collapse(path) == utterance.phonemes
        ]
        expected.append(-torch.stack(paths).logsumexp(0) / len(utterance.phonemes))
    assert_close(ctc_loss(FixedEncoder(log_p), batch, CPU), torch.stack(expected).mean())


def test_greedy_decoding_ignores_padding() -> None:
    frames = torch.tensor([[1, 1, 0, 1], [2, 0, 3, 3]])
    batch = [Utterance(torch.zeros(n, 1), [1]) for n in (4, 2)]
    log_p = nn.functional.one_hot(frames, 4).float()
    assert [*greedy_decode(FixedEncoder(log_p), batch, CPU)] == [[1, 1], [2]]
