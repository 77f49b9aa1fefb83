"""The build of the native code: compilers, failures, warnings and sanitizers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.kernels.native.cpu import ISAS, cpu_isas, machine_isas
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.factory import create_decoder
from scanline.model.decoders.reference import ReferenceDecoder
from tests.conftest import ROOT, isa_params
from tests.kernels.native.fixtures import STRICT, TINY, compilations


def test_no_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # or auto uses the GPU
    with pytest.raises(BackendError, match=r"no C\+\+ compiler: install g\+\+"):
        create_decoder(TINY, 1, "native")
    reference = create_decoder(TINY, 1)
    assert isinstance(reference, ReferenceDecoder)
    assert reference.slow
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "install g++" in caplog.text


@pytest.mark.skipif(len(cpu_isas()) < 3, reason="this CPU has no ISA between best and portable")
def test_compiler_without_support_for_the_best_isa(
    cache: Path, compiler: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older compiler builds the next best ISA, and a warning is logged."""
    best, second = cpu_isas()[:2]
    flag = next(flag for flag in ISAS[best].flags if flag not in ISAS[second].flags)
    reject = f"case \"$*\" in *{flag}*) echo 'error: unknown {flag}' >&2; exit 1;; esac\n"
    compiler.write_text(compiler.read_text().replace("while", f"{reject}while"))
    native.load_library()
    assert [path.name.split("-")[1] for path in cache.iterdir()] == [second]
    assert f"using {second} instead of this CPU's best ISA: " in caplog.text
    assert f"error: unknown {flag}" in caplog.text
    with pytest.raises(native_build.NativeBuildError, match="unknown"):
        native.load_library(best)


def test_killed_compiler_stops_the_build(
    cache: Path,
    compiler: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No other ISA is tried, because Ctrl-C kills the compiler too."""
    compiler.write_text(compiler.read_text().replace("while", "kill -TERM $$\nwhile"))
    with pytest.raises(native_build.InterruptedBuildError, match=r"killed by signal 15 \(Term"):
        native.load_library()
    assert compilations(compiler) == 1
    assert list(cache.iterdir()) == []
    output = 'echo "no room in $TMPDIR" >&2\nkill -TERM'
    compiler.write_text(compiler.read_text().replace("kill -TERM", output))
    with pytest.raises(
        native_build.InterruptedBuildError, match=f"with the output 'no room in {cache}/.decoder-"
    ):
        native.load_library()
    compiler.write_text(compiler.read_text().replace(output, "kill -TERM"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # or auto uses the GPU
    with pytest.raises(BackendError, match="killed by signal 15"):
        create_decoder(TINY, 1, "native")
    assert isinstance(create_decoder(TINY, 1), ReferenceDecoder)
    assert "killed by signal 15" in caplog.text
    assert compilations(compiler) == 4


@pytest.mark.parametrize(
    "output",
    [
        "g++: fatal error: Killed signal terminated program cc1plus",
        "/usr/bin/ld: libstdc++.so: error adding symbols: memory exhausted",
    ],
)
def test_killed_compiler_subprocess_stops_the_build(
    output: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it if memory is short. The next build deletes stale files."""
    cache.mkdir(exist_ok=True)
    old, new = cache / ".decoder-old.so.x", cache / ".decoder-new.so.y"
    for left in (old, new):
        left.mkdir()
        (left / "cc.s").touch()
    os.utime(old, (0, 0))
    driver = tmp_path / "driver"
    driver.write_text(f"#!/bin/sh\n[ $1 = --version ] || {{ echo '{output}' >&2; exit 1; }}\n")
    driver.chmod(0o755)
    monkeypatch.setenv("CXX", str(driver))
    with pytest.raises(native_build.InterruptedBuildError, match="because memory is short"):
        native.load_library()
    assert list(cache.iterdir()) == [new]


def test_messages_of_the_compiler_are_in_english(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver"
    english = "g++: fatal error: Killed signal terminated program cc1plus"
    driver.write_text(
        f"#!/bin/sh\n[ $1 = --version ] && exit\n"
        f"[ $LC_ALL = C ] && echo '{english}' >&2 || echo 'Signal »Killed« beendete cc1plus' >&2\n"
        "exit 1\n"
    )
    driver.chmod(0o755)
    monkeypatch.setenv("CXX", str(driver))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(native_build.InterruptedBuildError, match="Killed signal terminated"):
        native.load_library()


def test_failing_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'error: no' >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BackendError, match=r"failed \(error: no\); set CXX to another one"):
        create_decoder(TINY, 1, "native")
    assert list(cache.iterdir()) == []
    broken.write_text(broken.read_text().replace("no'", "no /caf\\351'"))  # a name in Latin-1
    with pytest.raises(BackendError, match="failed \\(error: no /caf\N{REPLACEMENT CHARACTER}"):
        create_decoder(TINY, 1, "native")
    monkeypatch.setenv("CXX", "g++ '-O2")
    with pytest.raises(BackendError, match="CXX cannot be parsed: no closing quotation"):
        create_decoder(TINY, 1, "native")
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(BackendError, match="CXX is '/nowhere/c\\+\\+', which does not exist"):
        create_decoder(TINY, 1, "native")


def test_output_that_cannot_be_loaded(cache: Path, compiler: Path) -> None:
    """Such as that of a compiler with a newer C++ library. Neither folder nor ISA is to blame."""
    compiler.write_text(compiler.read_text().replace("exec cp", 'echo none >"$2" || cp'))
    with pytest.raises(
        native_build.UnloadableBuildError, match=r"cannot be loaded .*: set CXX to another compiler"
    ):
        native.load_library()
    assert compilations(compiler) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [native_build.DECODER, native_build.TRAINING], ids=lambda s: s.stem
)
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("isa", isa_params(machine_isas()))
def test_no_compiler_warnings(
    source: Path, compiler: str, isa: str, pytestconfig: pytest.Config
) -> None:
    # gcc finds uninitialised values only when optimising, which takes five times as long. Do that
    # only with --broad and for one ISA, because the code differs only in vectors. All of clang's
    # warnings come from its parser.
    broad = pytestconfig.getoption("--broad")
    if not broad and source == native_build.TRAINING and isa == "portable":
        pytest.skip("the decoder includes the same portable vectors: run with --broad")
    optimised = broad and compiler == "g++" and isa == "portable"
    level = ["-O1", "-S", "-o", os.devnull] if optimised else ["-fsyntax-only"]
    flags = [*native_build.FLAGS, *ISAS[isa].flags, *STRICT.split(), *level]
    command = [compiler, *flags, str(source)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {compiler} here")
    assert done.stderr == ""
    assert done.returncode == 0


SANITIZE = (
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
    # The fastest build: -O1 takes twice as long, and inlined checks 25% longer.
    "-Og", "--param", "asan-instrumentation-with-call-threshold=0", *STRICT.split(),
)  # fmt: skip


@pytest.mark.broad
@pytest.mark.slow
@pytest.mark.timeout(600)  # the build alone takes a minute or two
@pytest.mark.parametrize(
    ("source", "program"),
    [
        pytest.param(native_build.DECODER, "sanitized_decoder", id="decoder"),
        pytest.param(native_build.TRAINING, "sanitized_training", id="training"),
    ],
)
def test_sanitizers(
    source: Path, program: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtimes = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so.6"):
        try:
            command = ["g++", f"-print-file-name={name}"]
            found = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no g++ here")
        runtimes.append(found.stdout.strip())
    if not all(Path(runtime).is_file() for runtime in runtimes):
        pytest.skip("g++ comes without its sanitizers here")
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("SCANLINE_CXXFLAGS", " ".join(SANITIZE))
    # Build in this process, because the sanitizer's preloaded runtime would slow the compiler.
    isa, gcc = cpu_isas()[0], native_build.find_compiler()
    path = cache / native_build._name(isa, gcc, source)
    native_build.compile_library(gcc, isa, source, path, to_load=False)
    environment = os.environ | {
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
    }
    done = subprocess.run(
        [sys.executable, "-m", f"tests.kernels.native.{program}"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "clean\n", done.stderr[-3000:]
