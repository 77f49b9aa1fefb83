"""Limits per caller, over all models."""

from __future__ import annotations

import pytest

from scanline.service.engine.generation import GenerationSpec
from scanline.service.engine.queue_limits import RefusedError
from tests.service.engine.fixtures import Gate
from tests.service.fake_decoders import FakeDecoder
from tests.service.fixtures import GREY, build, talking_to


def test_the_in_flight_limit_counts_the_images_of_all_models() -> None:
    decoders = [FakeDecoder(GREY, 4), FakeDecoder(GREY, 4)]
    gates = [Gate(decoder) for decoder in decoders]
    fields = {"max_images": 5, "max_images_per_caller": 5}
    app_state, app = build(fields, dict(zip(("old", "new"), decoders, strict=True)))
    with talking_to(app):
        old, new = app_state.models.values()
        old.engine.queue.submit(GenerationSpec(n=3, seed=0), caller="a")
        new.engine.queue.submit(GenerationSpec(n=1, seed=0), caller="a")
        app_state.serve({"new": new})  # the replaced model still draws
        app_state.check_caller("a", 1)
        app_state.check_caller("b", 5)
        with pytest.raises(RefusedError, match="you have 4 images in flight") as refused:
            app_state.check_caller("a", 2)
        assert refused.value.code == "too_many_in_flight"
        for gate in gates:
            gate.open()


def test_without_a_limit_a_caller_may_have_any_number_of_images() -> None:
    app_state, _ = build({"max_images_per_caller": None}, {})
    app_state.check_caller("a", 10**6)
