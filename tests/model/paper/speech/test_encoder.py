"""Tests of the encoders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scanline.model.paper.speech.encoder import KINDS, Encoder, Recurrent
from tests.conftest import assert_close
from tests.model.paper.speech.fixtures import SIZES

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_encoder_ignores_padding_and_is_bidirectional(kind: str) -> None:
    encoder = Encoder(kind, SIZES, 3, 5).double().eval()
    x, lengths = torch.randn(3, 91, 3).double(), torch.tensor([91, 20, 41])
    log_p, steps = encoder(x, lengths)
    assert log_p.shape == (3, 46, 6)
    assert steps.tolist() == [46, 10, 21]
    assert_close(log_p.exp().sum(-1), torch.ones(3, 46).double())
    for row, length, taken in zip(range(3), lengths.tolist(), steps.tolist(), strict=True):
        alone, _ = encoder(x[row : row + 1, :length], lengths[row : row + 1])
        assert_close(log_p[row : row + 1, :taken], alone)
    for position in (0, 19):  # in the row that every kind attends to fully
        changed = x.clone()
        changed[1, position] += 1
        difference = (encoder(changed, lengths)[0] - log_p).abs().amax(-1)
        assert (difference[1, :10] > 0).all()
        assert difference[0].max() == difference[2].max() == 0


@torch.no_grad()
def test_recurrent_encoder_equals_a_bidirectional_lstm_of_packed_rows() -> None:
    sizes = replace(SIZES, lstm_layers=2)
    recurrent, lstm = Recurrent(sizes, 3), nn.LSTM(3, 8, 2, batch_first=True, bidirectional=True)
    for layer in range(2):
        directions = (recurrent.forward_layers[layer], recurrent.backward_layers[layer])
        for suffix, single in zip(("", "_reverse"), directions, strict=True):
            for name, parameter in single.named_parameters():
                parameter.copy_(lstm.get_parameter(f"{name[:-1]}{layer}{suffix}"))
    x, lengths = torch.randn(3, 9, 3), torch.tensor([9, 2, 5])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    padding = torch.arange(9) >= lengths.unsqueeze(1)
    assert_close(recurrent(x, lengths).masked_fill(padding.unsqueeze(-1), 0), expected)


def test_unknown_encoder_is_rejected() -> None:
    with pytest.raises(ValueError, match="unknown encoder 'lstm': choose bi-lstm, softmax"):
        Encoder("lstm", SIZES, 3, 5)
