"""Tests of the timings' variants, without a GPU."""

from __future__ import annotations

import pytest

from scanline.kernels.cuda.fused import fused_decode
from scanline.model.config import PRESETS
from scanline.model.decoders.packing import decode_config_for
from tests.device.time_fused_kernel import (
    VARIANTS,
    Variant,
    compiled_source,
    time_variant,
    timings,
)  # fmt: skip

H100 = {"capability": (9, 0), "shared": 232_448}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_each_variant_differs_from_the_kernel_and_fits_the_network(variant: Variant) -> None:
    config = decode_config_for(PRESETS["mnist-paper"])
    own = fused_decode.LAUNCH_CONFIGS[-1:], fused_decode.source()
    assert (variant.launch_configs, variant.source()) != own
    assert fused_decode.supported_configs(config, variant.launch_configs, **H100)  # type: ignore[arg-type]


def test_a_text_that_the_kernel_lacks_is_reported() -> None:
    with pytest.raises(ValueError, match="x: the source has 0 times 'no such text'"):
        Variant("x", changes=(("no such text", ""),)).source()


def test_decoders_compile_the_changed_source_inside_the_block_only() -> None:
    own = fused_decode.source()
    with compiled_source("changed"):
        assert fused_decode.source() == "changed"
    assert fused_decode.source() == own


def test_sizes_are_timed_before_variants() -> None:
    order = timings(["mnist-paper", "cifar10"], [10_000, 1])
    assert [(model, slots, variant.name) for model, slots, variant in order[:6]] == [
        ("mnist-paper", 10_000, ""), ("cifar10", 10_000, ""),
        ("mnist-paper", 1, ""), ("cifar10", 1, ""),
        ("mnist-paper", 10_000, "Triton's kernels"), ("mnist-paper", 1, "Triton's kernels"),
    ]  # fmt: skip
    assert [variant for _, _, variant in order[6:]] == [*VARIANTS]


def test_an_error_is_the_result_of_its_timing() -> None:
    broken = Variant("broken", changes=(("no such text", ""),))
    line = time_variant("mnist", 1, broken, 0.1, 1)
    assert line.startswith("mnist, 1 slots, broken: ")
    assert "Error" in line
