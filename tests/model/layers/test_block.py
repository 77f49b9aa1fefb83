"""Table of the attention layers."""

from __future__ import annotations

from scanline.kernels.constants import ATTENTION_KINDS
from scanline.model.layers.block import ATTENTIONS


def test_every_kind_of_attention_has_a_layer() -> None:
    assert tuple(ATTENTIONS) == ATTENTION_KINDS
