"""Tests of the Triton decoder on a GPU: precisions, graphs, many slots, memory.

``tests/kernels/cuda/test_fused_decode_on_gpu.py`` tests the fused kernel, which is the default.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from scanline.kernels.cuda.decode_plan import MANY
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.packing import DevicePrecision
from scanline.model.decoders.triton import TritonDecoder
from scanline.model.network import LinearTransformer
from tests.model.decoders.fixtures import network_for
from tests.triton.fixtures import (
    GRID,
    ODD,
    SMALL,
    all_slots,
    check_decoder,
    check_launches_in_flight,
    draw,
    either,
    gpu,
    sample_inputs,
    set_write_interval,
)


class TestTritonDecoderOnGpu:
    pytestmark = gpu

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    @pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
    def test_agrees_with_float64(self, config: ModelConfig, precision: DevicePrecision) -> None:
        check_decoder(config, precision)

    @either
    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_graphs_and_overlap_do_not_change_results(
        self, config: ModelConfig, precision: DevicePrecision
    ) -> None:
        large = replace(config, height=7, width=5, n_layers=2)
        inputs, network = sample_inputs(large, 9), network_for(large)
        create = partial(TritonDecoder, network, 9, precision=precision)
        eager, graphs = create(graphs=False, overlap=False), create()
        expected = draw(eager, inputs)
        for n in (1, 3, 17, 10**6):
            assert draw(graphs, inputs, n) == expected

    @pytest.mark.parametrize("graphs", [True, False])
    def test_many_rows_draw_the_same_bytes_as_few(self, graphs: bool) -> None:
        """Many rows use wider tiles."""
        config = replace(PRESETS["mnist-paper"], height=2, width=3, n_layers=2)
        network, inputs = network_for(config), sample_inputs(config, MANY + 70)
        many = TritonDecoder(network, MANY + 70, graphs=graphs, fused=False)
        draw(many, inputs)
        few = TritonDecoder(network, 5, graphs=graphs, fused=False)
        for rows in (range(5), range(MANY - 3, MANY + 2), range(MANY + 65, MANY + 70)):
            draw(few, inputs.select(list(rows)))
            assert np.array_equal(few.canvas, many.canvas[list(rows)])
            assert np.array_equal(few.bits, many.bits[list(rows)])

    @either
    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_launches_in_flight(self, config: ModelConfig, precision: DevicePrecision) -> None:
        check_launches_in_flight(config, precision)

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_write_interval_does_not_change_results(
        self, precision: DevicePrecision, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config = replace(PRESETS["mnist-paper"], height=3)
        network, inputs = network_for(config), sample_inputs(config, 5)
        drawn = draw(TritonDecoder(network, 5, precision=precision, fused=False), inputs)
        set_write_interval(1, monkeypatch)
        assert draw(TritonDecoder(network, 5, precision=precision, fused=False), inputs) == drawn

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    @pytest.mark.parametrize("name", PRESETS)
    def test_ten_thousand_slots(self, name: str, precision: DevicePrecision) -> None:
        """Eight images, repeated in 10,000 slots, have the same bytes as alone."""
        config = replace(PRESETS[name], height=2)
        network, count = LinearTransformer(config), 10_000
        inputs = sample_inputs(config, 8).select([i % 8 for i in range(count)])
        decoder = TritonDecoder(network, count, precision=precision, fused=False)
        decoder.begin(list(range(count)), inputs)
        decoder.step(all_slots(decoder)[::-1], config.pixels)
        alone = TritonDecoder(network, 1, precision=precision, fused=False)
        for row in range(8):
            alone.begin([0], inputs.select([row]))
            alone.step([0], config.pixels)
            assert (decoder.canvas[row::8] == alone.canvas).all()
            assert (decoder.bits[row::8] == alone.bits).all()

    def test_memory_stays_flat(self) -> None:
        network, inputs = network_for(SMALL), sample_inputs(SMALL, 16)
        decoder = TritonDecoder(network, 16)
        draw(decoder, inputs, 1)
        draw(decoder, inputs)
        gc.collect()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        for _ in range(500):
            draw(decoder, inputs, 4)
        torch.cuda.synchronize()
        assert (torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]) == before

    def test_too_many_slots_raise(self) -> None:
        network = LinearTransformer(PRESETS["mnist-paper"])
        with pytest.raises(BackendError, match=r"10,000,000 slots of .* MiB do not fit"):
            TritonDecoder(network, 10_000_000)

    def test_auto_backend_uses_the_gpu(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        assert create_decoder(network_for(SMALL), 1).backend == "triton"
        assert torch.cuda.get_device_name() in caplog.text
