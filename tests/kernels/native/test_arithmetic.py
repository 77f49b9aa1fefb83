"""The native decoder's arithmetic: the same bytes from every build on every CPU."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

from scanline.kernels.native.abi import PRECISIONS, Precision
from scanline.kernels.native.build import FLAGS, find_compiler
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import ARITHMETIC, NativeDecoder
from tests.kernels.native import golden
from tests.kernels.native.fixtures import EMULATED, TINY, use_emulation
from tests.kernels.native.golden import (
    CASES,
    NAMES,
    SHIPPED,
    draw_golden,
    load_golden,
    network_of,
)
from tests.kernels.native.golden import PRECISIONS as GOLDEN_PRECISIONS

RecordProperty = Callable[[str, object], None]
COMPILERS, LEVELS = ("g++", "clang++"), ("-O1", "-O2", "-O3")
TINY_NAMES = [name for name in NAMES if name not in SHIPPED]


def check_golden(
    name: str, precision: Precision, isa: str | None, cases: Collection[str] = tuple(CASES)
) -> str:
    """Compare golden pictures of a network; return the name of the instruction set."""
    drawn, used = draw_golden(name, precision, isa, cases)
    expected = load_golden()[name][precision]
    assert expected.keys() == {*CASES, "particles"}
    different = [case for case, hashed in drawn.items() if hashed != expected[case]]
    assert not different, f"{name}, {precision}, drawn with {used}: {sorted(different)} differ"
    return used


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_but_bf16_has_a_version(precision: Precision) -> None:
    decoder = NativeDecoder(TINY, 1, 1, precision=precision)
    assert decoder.arithmetic == (None if precision == "bf16" else ARITHMETIC)


def test_the_variant_names_the_isa_only_if_the_bytes_depend_on_it() -> None:
    exact, rounded = (NativeDecoder(TINY, 1, 1, precision=one) for one in ("int16", "bf16"))
    assert exact.variant == f"native arithmetic-{ARITHMETIC} int16"
    assert rounded.variant == f"native {rounded.isa} bf16"


def test_new_golden_pictures_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = golden.FILE.read_text()
    (file := tmp_path / "golden.json").write_text(text)
    monkeypatch.setattr(golden, "FILE", file)
    assert list(golden.write_golden()) == []
    assert file.read_text() == text
    loaded = json.loads(text)
    cases = loaded["hashes"][TINY_NAMES[0]]["int8"]
    del cases["hot"]
    file.write_text(json.dumps(loaded))
    assert [line.partition(":")[0] for line in golden.write_golden()] == [f"{TINY_NAMES[0]}, int8"]
    assert json.loads(file.read_text()) == json.loads(text)
    cases["plain"] = "another"
    file.write_text(json.dumps(loaded))
    with pytest.raises(ValueError, match=r"int8: \['plain'\] changed; raise ARITHMETIC"):
        list(golden.write_golden())


@pytest.mark.parametrize("precision", GOLDEN_PRECISIONS)
@pytest.mark.parametrize("name", TINY_NAMES)
def test_golden_pictures(
    name: str, precision: Precision, isa: str, record_property: RecordProperty
) -> None:
    """On every instruction set, whose name is in the test's id and in the report."""
    record_property("instruction set", check_golden(name, precision, isa))


@pytest.mark.slow
@pytest.mark.parametrize("precision", GOLDEN_PRECISIONS)
@pytest.mark.parametrize("name", [*TINY_NAMES, pytest.param("mnist", marks=pytest.mark.broad)])
def test_golden_pictures_of_emulated_isas(
    name: str, precision: Precision, emulated: str, emulation_folder: Path,
    monkeypatch: pytest.MonkeyPatch, record_property: RecordProperty,
) -> None:  # fmt: skip
    use_emulation(emulated, emulation_folder, monkeypatch)
    used = check_golden(name, precision, EMULATED[emulated])
    assert used == emulated
    record_property("instruction set", used)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_golden_pictures_of_shipped_models(
    name: str, isa: str, record_property: RecordProperty, request: pytest.FixtureRequest
) -> None:
    """Some cases with ``int16`` or, if ``--broad``, all as with tiny networks."""
    precisions, cases = GOLDEN_PRECISIONS, tuple(CASES)
    if not request.config.getoption("--broad"):
        if (isa, name) == ("portable", "cifar10"):  # fma in software is slow
            pytest.skip("takes many minutes for cifar10: run with --broad")
        precisions, cases = ("int16",), ("plain", "guided top-p")
    for precision in precisions:
        record_property("instruction set", check_golden(name, precision, isa, cases))


def use_compiler(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (path := shutil.which(compiler)):
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("CXX", shlex.quote(path))


@pytest.mark.broad
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_golden_pictures_of_other_builds(
    compiler: str, level: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_compiler(compiler, monkeypatch)
    monkeypatch.setenv("SCANLINE_CXXFLAGS", level)
    for name in TINY_NAMES:
        for precision in GOLDEN_PRECISIONS:
            check_golden(name, precision, isa)


@pytest.mark.broad
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_golden_pictures_of_other_builds_of_emulated_isas(
    compiler: str, level: str, emulated: str, emulation_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use_compiler(compiler, monkeypatch)
    use_emulation(emulated, emulation_folder, monkeypatch, level)
    for name in TINY_NAMES:
        for precision in GOLDEN_PRECISIONS:
            assert check_golden(name, precision, EMULATED[emulated]) == emulated


def test_fma_without_hardware_is_exact(tmp_path: Path) -> None:
    """In the portable build, on x86. Elsewhere ``fma`` is an instruction."""
    program, source = tmp_path / "fma", Path(__file__).with_name("fma.cpp")
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run([*find_compiler(), *flags, str(source), "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert not done.stdout
    assert done.returncode == 0


def denormals_are_kept() -> bool:
    return bool((torch.tensor([1e-38]) * 0.1 > 0).all())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_denormal_mode_is_ignored_and_kept(threads: int) -> None:
    """With a head whose parameters are all denormal numbers."""
    network = deepcopy(network_of("categorical grey"))
    with torch.no_grad():
        network.head.predictor.weight.mul_(2.0**-130)
        network.head.predictor.bias.zero_()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    try:
        decoder = NativeDecoder(network, 2, threads, precision="float32")
        parameters = decoder.trace()
        decoder.begin([0, 1], InputBatch.empty(network.config, 2))
        decoder.step([0, 1], 3)
        assert not denormals_are_kept()
    finally:
        torch.set_flush_denormal(False)
    assert denormals_are_kept()
    drawn = parameters[:, :3]
    assert (np.abs(drawn) < 2.0**-126).all()
    assert (drawn != 0).mean() > 0.9
