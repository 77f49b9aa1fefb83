"""The engine with the Triton decoder, in Triton's interpreter or on a CUDA device."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from scanline.model.checkpoint import Checkpoint  # noqa: E402
from scanline.model.decoders.base import BackendError, InputBatch  # noqa: E402
from scanline.model.decoders.device import Device  # noqa: E402
from scanline.model.decoders.triton import TritonDecoder  # noqa: E402
from scanline.model.sampling import SamplingParams  # noqa: E402
from scanline.service.engine.engine import Engine  # noqa: E402
from scanline.service.engine.generation import GenerationSpec  # noqa: E402
from scanline.service.engine.queue_limits import QueueLimits  # noqa: E402
from scanline.service.state.registry import open_engine  # noqa: E402
from tests.conftest import tiny_config  # noqa: E402
from tests.model.decoders.fixtures import network_for  # noqa: E402
from tests.service.fixtures import settings  # noqa: E402
from tests.triton.fast_interpreter import patch_interpreter  # noqa: E402

if not (triton.knobs.runtime.interpret or torch.cuda.is_available()):
    pytest.skip("needs TRITON_INTERPRET=1 or a CUDA device", allow_module_level=True)
if triton.knobs.runtime.interpret:
    patch_interpreter()

SMALL = tiny_config(height=2, width=2, n_layers=1, classes=("cat", "dog"), short_conv="2x3")


@pytest.mark.parametrize("min_prefill", [2, 3])
def test_the_engine_draws_with_triton(min_prefill: int) -> None:
    """Three images, one with two known pixels, in two slots: the same bytes as alone."""
    network = network_for(SMALL)
    known = np.arange(SMALL.pixels) < 2
    canvas = np.full((SMALL.pixels, 1), 99, np.uint8)
    specs = [
        GenerationSpec(n=2, seed=7, sampling=SamplingParams(label=1)),
        GenerationSpec(n=1, seed=3, canvas=canvas, known=known),
    ]
    decoder = TritonDecoder(network, 2, min_prefill=min_prefill)
    engine = Engine("tiny", decoder, QueueLimits())
    engine.start()
    try:
        generations = [engine.queue.submit(spec) for spec in specs]
        for generation in generations:
            with engine.queue.reading(generation):
                while not generation.finished:
                    time.sleep(0.01)
    finally:
        engine.close(drain=0)
    alone = TritonDecoder(network, 1, min_prefill=min_prefill)
    for generation, spec in zip(generations, specs, strict=True):
        assert generation.error is None
        for image in generation.images:
            none = np.zeros(SMALL.pixels, np.bool_)
            given = InputBatch.empty(SMALL, 1)
            given.canvas[:], given.seed[:], given.label[:] = canvas, image.seed, image.label
            given.known[:] = none if spec.known is None else known
            alone.begin([0], given)
            alone.step([0], SMALL.pixels)
            assert np.array_equal(image.read(0, SMALL.pixels), alone.canvas[0])


def test_the_suggested_number_of_slots_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 2**20
    monkeypatch.setattr(Device, "free", property(lambda _: free))
    checkpoint = Checkpoint("small", network_for(SMALL))
    with pytest.raises(BackendError, match="set SCANLINE_SLOTS to ") as refused:
        open_engine(checkpoint, settings(backend="triton", slots=65_536))
    slots = int(str(refused.value).rsplit(" ", 1)[1])
    assert slots > 1
    open_engine(checkpoint, settings(backend="triton", slots=slots)).close(0)
