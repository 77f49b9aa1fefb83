"""Arithmetic of the native decoder: which precisions have a version."""

from __future__ import annotations

import pytest

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.model.decoders.native import ARITHMETIC, NativeDecoder
from tests.kernels.native.fixtures import TINY


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_but_bf16_has_a_version(precision: Precision) -> None:
    decoder = NativeDecoder(TINY, 1, 1, precision=precision)
    assert decoder.arithmetic == (None if precision == "bf16" else ARITHMETIC)
    assert (f" arithmetic-{ARITHMETIC}" in decoder.variant) == (precision != "bf16")
