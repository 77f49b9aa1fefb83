"""Tests of the peer of the benchmark."""

from __future__ import annotations

import pytest

from scanline.model.bench.models import find_model
from scanline.model.bench.peer import Peer


def test_peer_computes_the_same() -> None:
    pytest.importorskip("fast_transformers")
    Peer(find_model("mnist-paper").model, 2).check()
