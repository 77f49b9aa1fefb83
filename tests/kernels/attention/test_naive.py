"""The definition of linear attention against the equations."""

from __future__ import annotations

import pytest
import torch

from scanline.kernels.attention.naive import (
    AttentionState,
    linear_attention_step,
    naive_linear_attention,
)
from tests.conftest import assert_close
from tests.kernels.attention.fixtures import inputs, reference_recurrence

LENGTHS = (1, 2, 31, 32, 33, 65, 97)


@pytest.mark.parametrize("T", LENGTHS)
def test_naive_matches_equations(T: int) -> None:
    q, k, v = inputs(T)
    o, final = naive_linear_attention(q, k, v)
    expected_o, expected = reference_recurrence(q, k, v)
    assert_close(o, expected_o)
    assert_close(final.kv, expected.kv)
    assert_close(final.z, expected.z)


def test_steps_match_equations() -> None:
    q, k, v = inputs(9)
    expected_o, expected = reference_recurrence(q, k, v)
    state = AttentionState(torch.zeros_like(expected.kv), torch.zeros_like(expected.z))
    for t in range(9):
        o = linear_attention_step(q[:, t], k[:, t], v[:, t], state)
        assert_close(o, expected_o[:, t])
    assert_close(state.kv, expected.kv)
    assert_close(state.z, expected.z)
