"""Tests of the selection of kernels to compile in advance."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanline.kernels.cuda.fused import fused_decode
from scanline.kernels.cuda.fused.driver import CompileError
from scanline.model.checkpoint import SHIPPED_WEIGHTS, read_config
from scanline.model.decoders.packing import decode_config_for
from tests.device import compile_fused_kernel
from tests.device.compile_fused_kernel import SHARED, jobs
from tests.device.time_fused_kernel import VARIANTS

HOPPER = (9, 0)


def test_kernels_of_shipped_weights_and_variants_are_included() -> None:
    found = jobs(HOPPER)
    for path in SHIPPED_WEIGHTS.glob("*.safetensors"):
        config = decode_config_for(read_config(path))
        launch_configs = fused_decode.supported_configs(
            config, fused_decode.LAUNCH_CONFIGS, capability=HOPPER, shared=SHARED
        )
        assert launch_configs
        for launch in launch_configs:
            assert (fused_decode.source(), fused_decode.defines(config, launch)) in found
    assert {variant.source() for variant in VARIANTS} <= {text for text, _ in found}


def test_older_devices_have_no_clusters() -> None:
    assert {macros["CLUSTER"] for _, macros in jobs((8, 0))} == {1}
    assert len({macros["CLUSTER"] for _, macros in jobs(HOPPER)}) > 3


def test_a_kernel_that_does_not_compile_fails_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_cached(text: str, *others: object) -> bytes:
        if text != fused_decode.source():
            raise CompileError("a variant")
        return b"code"

    monkeypatch.setattr(compile_fused_kernel, "compile_cached", compile_cached)
    monkeypatch.setenv("SCANLINE_CACHE", "")  # restored after the test
    with pytest.raises(SystemExit) as stop:
        compile_fused_kernel.main([str(tmp_path)])
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "not compiled: a variant" in out
    assert f"{len(jobs(HOPPER))} kernels" in out
