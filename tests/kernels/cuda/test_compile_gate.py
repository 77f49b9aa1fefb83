"""Tests of the compile gate: its variants are the launched ones, and its checks fail correctly."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled", allow_module_level=True)

from triton.backends.compiler import BaseBackend, GPUTarget  # noqa: E402
from triton.runtime.jit import native_specialize_impl  # noqa: E402

from scanline.kernels.attention.features import elu_feature_map  # noqa: E402
from scanline.kernels.cuda import attention as triton_attention  # noqa: E402
from scanline.kernels.cuda import compile_gate, decode_plan  # noqa: E402
from scanline.kernels.cuda.compile_gate import (  # noqa: E402
    all_variants,
    compile_all,
    compile_variant,
    main,
    to_ast_source,
    waits_first,
)
from scanline.kernels.cuda.fused.driver import CompileError  # noqa: E402
from scanline.kernels.cuda.variants import CudaSource, KernelVariant  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

VARIANTS = {variant.name: variant for variant in triton_attention.variants(90)}
SMALL = VARIANTS["attention_backward_kernel/fp32/16"]


def triton_variants(arch: int) -> list[KernelVariant]:
    return [variant for variant in all_variants(arch) if isinstance(variant, KernelVariant)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.slow
def test_one_variant_of_every_kernel_compiles() -> None:
    """One variant of every kernel; ``make gate`` compiles all, also for sm_100, in minutes.

    Kernels with tensor core instructions are compiled for two architectures.
    """
    tensor_core = "attention_.*/bf16/32/packed|mnist-paper/bf16/0.(qkv|out)"
    others = "mnist-paper/bf16/(embed|0.state|norm|sample)|mnist/bf16/0.conv1"
    command = [
        sys.executable,
        "-m",
        "scanline.kernels.cuda.compile_gate",
        "--arch",
        "80,90",
        "--match",
        f"({tensor_core}) sm_|({others}|fused_decode/mnist-paper/(16 x 8|1 x 80)) sm_90$",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    everything = [*VARIANTS.values(), *decode_plan.variants()]
    for kernel in {variant.kernel.__name__ for variant in everything}:
        uses_tensor_cores = kernel in (
            "forward_kernel", "backward_kernel", "project_kernel", "residual_kernel"
        )  # fmt: skip
        for arch in (80, 90) if uses_tensor_cores else (90,):
            row = rf"^(attention_)?{kernel}/.* {arch} +\d+ +\d+ +0 +\d+\.\d$"
            assert re.search(row, result.stdout, re.M), (kernel, arch)
    for rows in ("16 x 8", "1 x 80"):
        assert re.search(
            rf"^fused_decode/mnist-paper/{rows} +90 +\d+ +\d+ ", result.stdout, re.M
        ), rows
    verdict = r"\d+ of \d+ variants for sm_80, sm_90, .*: all passed"
    assert re.search(verdict, result.stdout)


def test_variant_names_are_unique() -> None:
    variants = all_variants(90)
    assert len({variant.name for variant in variants}) == len(variants)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 16), (torch.float32, 20), (torch.bfloat16, 20), (torch.bfloat16, 32),
        (torch.bfloat16, 64), (torch.float16, 32),
    ],
)  # fmt: skip
def test_launches_equal_the_variants(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares types, alignment, constants and options as Triton specialises them."""
    kind = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    expected = {
        variant.name: variant
        for variant in VARIANTS.values()
        if f"/{kind}/{size}" in variant.name and (size % 16 == 0 or "packed" not in variant.name)
    }
    launched: dict[str, KernelVariant] = {}

    class Kernel:
        """Stand-in for a kernel that specialises its arguments as Triton's launcher does."""

        def __init__(self, real: Any) -> None:
            self.real, self.arg_names = real, real.arg_names

        def __getitem__(self, grid: tuple[int, int]) -> Kernel:
            assert all(0 < programs < 2**31 for programs in grid)
            return self

        def __call__(self, *values: object, **options: object) -> None:
            names = self.arg_names
            launch = {name: options.pop(name) for name in ("num_warps", "num_stages", "maxnreg")}
            constants, types = dict(options), {}
            for name, value in zip(names, values, strict=False):
                specialize = name not in ("T", "H")  # do_not_specialize
                found, key = native_specialize_impl(
                    BaseBackend, value, False, specialize, specialize
                )
                if found == "constexpr":
                    constants[name] = value
                else:
                    types[name] = found + (":16" if key == "D" else "")
            name = f"attention_{self.real.__name__}/{kind}/{size}"
            name += "/packed" if constants["FEATURE_MAP"] else ""
            launched[name] = KernelVariant(name, self.real, types, constants, **launch)  # type: ignore[arg-type]

    for kernel in {variant.kernel for variant in VARIANTS.values()}:
        monkeypatch.setattr(triton_attention, kernel.__name__, Kernel(kernel))
    # With three heads of 20 no stride is a multiple of 16.
    shape = (2, 33, 3, size)
    q, k, v = (elu_feature_map(torch.randn(shape)).to(dtype).requires_grad_() for _ in range(3))
    o, _ = triton_attention.triton_linear_attention(q, k, v)
    o.float().sum().backward()  # type: ignore[no-untyped-call]
    if size % 16 == 0:  # otherwise the alignment of k and v depends on the number of heads
        qkv = torch.stack((q, k, v), 2).detach().requires_grad_()
        o = triton_attention.triton_packed_attention(qkv)
        o.float().sum().backward()  # type: ignore[no-untyped-call]
    assert len(launched) == (4 if size % 16 == 0 else 2)
    assert launched == expected


def test_register_spill_fails() -> None:
    narrow = replace(VARIANTS["attention_forward_kernel/fp32/64"], num_warps=1)
    usage = compile_variant(narrow, 90)
    assert usage.stack > 0
    assert usage.error == "spills registers"


def test_too_much_shared_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_variant(SMALL, 80).error is None
    monkeypatch.setitem(compile_gate.SHARED_BYTES, 80, 1024)
    assert "shared memory" in str(compile_variant(SMALL, 80).error)


def test_waits_first_detects_early_accesses() -> None:
    (embed,) = (v for v in triton_variants(90) if v.name == "embed_kernel/mnist-paper/bf16/embed")
    assert embed.constants["OVERLAP"]
    ptx = triton.compile(to_ast_source(embed), target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert waits_first(ptx)
    assert "griddepcontrol.launch_dependents" in ptx
    assert not waits_first(ptx.replace("griddepcontrol.wait", "nop"))
    load = "ld.global.b32 %r1, [%rd1];\n"
    assert not waits_first(load + ptx)
    assert not any(v.constants.get("OVERLAP") for v in triton_variants(80))


def test_variant_with_wrong_arguments_raises() -> None:
    constants = {name: value for name, value in SMALL.constants.items() if name != "PRECISION"}
    with pytest.raises(ValueError, match="PRECISION"):
        to_ast_source(replace(SMALL, constants=constants))
    with pytest.raises(ValueError, match="one is given twice"):
        to_ast_source(replace(SMALL, signature=SMALL.signature | {"K": "i32"}))


@pytest.mark.slow
def test_cuda_source_with_too_much_stack_or_shared_memory_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (one,) = (v for v in all_variants(90) if v.name == "fused_decode/mnist-paper/16 x 8")
    assert isinstance(one, CudaSource)
    usage = compile_variant(one, 90)
    assert usage.error is None
    assert usage.registers > 100
    assert compile_variant(replace(one, stack=0), 90).error == "spills registers"
    assert "shared memory" in str(compile_variant(replace(one, shared=2**18), 90).error)
    with pytest.raises(CompileError, match="no kernel"):
        compile_variant(replace(one, text="#error no kernel"), 90)


def test_compile_all_continues_after_a_failure() -> None:
    broken = replace(SMALL, constants=SMALL.constants | {"BT": 33})  # not a power of two
    usages = {
        id(variant): usage
        for variant, _, usage, _ in compile_all([(broken, 90), (SMALL, 90)], 60, 2)
    }
    assert usages[id(SMALL)].error is None
    assert usages[id(SMALL)].registers > 0
    assert "power of 2" in str(usages[id(broken)].error)


def test_compilation_timeout() -> None:
    ((_, _, usage, _),) = compile_all([(SMALL, 90)], 0.0, 1)
    assert usage.error == "takes longer than 0 s"


def test_no_matching_variant_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--match", "no such kernel"])
    assert exit_.value.code == 2
    assert "no variant's name matches" in capsys.readouterr().err
