"""The native decoder beyond test_decoder.py's contract: every ISA, precision and thread count."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.kernels.native import abi as native
from scanline.kernels.native import build as native_build
from scanline.model.bench import cpu as bench
from scanline.model.bench import limits
from scanline.model.bench.peer import Peer
from scanline.model.checkpoint import SHIPPED, CheckpointError, find_checkpoints, load_checkpoint
from scanline.model.config import PRESETS, ModelConfig
from scanline.model.data.published import load_dataset
from scanline.model.decoders.contract import BackendError, Decoder, Inputs
from scanline.model.decoders.native import NativeDecoder, Precision
from scanline.model.decoders.opening import open_decoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from tests.conftest import ROOT, TOLERANCES, assert_close, random_network, tiny_config
from tests.service_fixtures import until
from tests.test_decoder import blank, every_kind, masked, network_of, noises, scatter_seeds
from tests.test_network import FEW, every_variant

# The native code's float32 mode against float64, as a part of the largest parameter.
FLOAT32_ERROR = 1e-5
# What bf16 weights may change of bits/dim on real images.
BITS_PER_DIM_ERROR = 0.002

ODD_SIZES = {
    "heads of 8": tiny_config(n_heads=3, d_model=24, d_ff=37),
    "heads of 12": tiny_config(n_heads=5, d_model=60, d_ff=100, encoding="linear"),
    "heads of 20": tiny_config(n_heads=2, d_model=40, d_ff=1, norm="post", activation="relu"),
    "heads of 31": tiny_config(n_heads=3, d_model=93, d_ff=65, head="logistic_mixture"),
    "heads of 33": tiny_config(n_heads=1, d_model=33, d_ff=31, channels=3, encoding="table+linear"),
    "heads of 1": tiny_config(n_heads=7, d_model=7, d_ff=3, height=1, width=1),
    "wide": tiny_config(n_heads=2, d_model=256, d_ff=130, height=2, width=9),
}
TINY = LinearTransformer(tiny_config())
STRICT = "-Wall -Wextra -Wpedantic -Werror -Wno-unused-command-line-argument"


@pytest.fixture(params=native_build.ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """Give each ISA's name; skips, visibly, those that this CPU or compiler lacks."""
    name = str(request.param)
    try:
        native.load_library(name)
    except native_build.NativeBuildError as error:
        pytest.skip(str(error))
    return name


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache folder to build into."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SCANLINE_CACHE", str(folder))
    monkeypatch.setenv("SCANLINE_CXXFLAGS", "-O0")  # builds faster
    return folder


def trace(
    decoder: NativeDecoder, inputs: Inputs, n: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run all pixels as they are, known or drawn; give every step's parameters, and the bits."""
    slots = np.arange(len(inputs.canvas), dtype=np.int32)
    parameters = decoder.trace()
    decoder.begin(slots.tolist(), inputs)
    for _ in range(0, decoder.config.pixels, n or decoder.config.pixels):
        decoder.step(slots, n or decoder.config.pixels)
    return parameters[slots, int(decoder.config.start == "given") :], decoder.bits[slots]


def exact(
    config: ModelConfig, canvas: NDArray[np.uint8], inputs: Inputs
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give the network's parameters and bits in float64."""
    network = random_network(config)  # the same draws as network_of's, before rounding
    network.load_state_dict(network_of(config).state_dict())
    labels = torch.from_numpy(inputs.label).long()
    with torch.no_grad():
        parameters = network(torch.from_numpy(canvas), labels)
        bits = network.bits_from(parameters, torch.from_numpy(canvas))
    return parameters.numpy(), bits.numpy()


def check_against_float64(config: ModelConfig, precision: Precision, isa: str | None) -> None:
    inputs = masked(config, 3, seed=1)
    decoder = NativeDecoder(network_of(config), 3, 2, precision=precision, isa=isa)
    parameters, bits = trace(decoder, inputs)
    expected, expected_bits = exact(config, decoder.canvas, inputs)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if expected.size:
        error = np.abs(parameters - expected).max() / np.abs(expected).max()
        assert error <= (FLOAT32_ERROR if precision == "float32" else TOLERANCES[dtype]["rtol"])
    assert_close(torch.from_numpy(bits), torch.from_numpy(expected_bits), dtype)


# Agreement.


@every_variant
def test_float32_agrees_with_float64(config: ModelConfig) -> None:
    check_against_float64(config, "float32", None)


@pytest.mark.parametrize("config", [*FEW.values(), *ODD_SIZES.values()])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_every_isa_agrees_with_float64(config: ModelConfig, precision: Precision, isa: str) -> None:
    check_against_float64(config, precision, isa)


@every_kind
def test_samples_are_the_heads(config: ModelConfig, isa: str) -> None:
    """Each value drawn is what the head's definition draws from the same parameters."""
    inputs = masked(config, 32, seed=2)
    scatter_seeds(inputs)
    inputs.known[:] = False
    network = network_of(config)
    decoder = NativeDecoder(network, 32, 2, isa=isa)
    parameters, _ = trace(decoder, inputs)
    uniforms = noises(inputs, config).reshape(32, config.steps, -1)
    equal = []
    for step in range(config.steps):
        values = network.head.sample(
            torch.from_numpy(parameters[:, step]),
            torch.from_numpy(uniforms[:, step].copy()),
            torch.from_numpy(inputs.temperature),
        )
        drawn = decoder.canvas.reshape(32, config.steps, -1)[:, step]
        equal.append(values.numpy() == drawn)
    # Where the uniform lies within rounding of the border of two values, either may be drawn.
    assert np.mean(equal) > 0.998


def test_bits_per_dim_of_the_shipped_weights(data_dir: Path) -> None:
    """Within 0.002 of the float32 reference on real images."""
    try:
        found = find_checkpoints(SHIPPED)
    except CheckpointError as error:
        pytest.skip(str(error))
    checked = 0
    for name, path in found.items():
        model = load_checkpoint(path).model
        config = model.config
        dataset = "cifar10" if config.channels == 3 else "mnist"
        images = load_dataset(dataset, "test", data_dir).images[:40]
        if images.shape[1:] != (config.height, config.width, config.channels):
            continue
        canvas = images.reshape(len(images), config.pixels, config.channels)
        inputs = replace_known(blank(config, len(images)), canvas)
        with torch.no_grad():
            expected = model.bits(torch.from_numpy(canvas)).numpy()
        decoder = NativeDecoder(model, len(images))
        slots = np.arange(len(images), dtype=np.int32)
        decoder.begin(slots.tolist(), inputs)
        difference = (decoder.bits.sum() - expected.sum()) / len(images) / config.dims
        assert abs(difference) <= BITS_PER_DIM_ERROR, name
        checked += 1
    if not checked:
        pytest.skip("none of the shipped networks draws MNIST or CIFAR-10")


def replace_known(inputs: Inputs, canvas: NDArray[np.uint8]) -> Inputs:
    label = np.full(len(canvas), -1, np.int32)
    return replace(inputs, canvas=canvas, known=np.ones_like(inputs.known), label=label)


# The same bytes, however they are computed.


@every_kind
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_prefill_is_stepping_to_the_last_bit(config: ModelConfig, threads: int, isa: str) -> None:
    """States, bits and parameters, for images prefilled together and one by one."""
    wide = replace(config, height=9, width=7, d_model=48)  # several blocks of rows an image
    inputs = blank(wide, 4)
    lengths = np.array([1, 8, 25, wide.pixels], np.int32)
    slots = np.arange(4, dtype=np.int32)
    network = network_of(wide)
    stepped = NativeDecoder(network, 4, 1, isa=isa)
    stepped.begin(slots, inputs)
    for slot, length in enumerate(lengths):
        for _ in range(length):
            stepped.step([slot], 1)
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(wide.pixels) < lengths[:, None]
    for some in ([slots], np.split(slots, 4)):
        filled = NativeDecoder(network, 4, threads, isa=isa, team=threads)
        for part in some:
            filled.begin(part, inputs.rows(part))
        assert filled.states.tobytes() == stepped.states.tobytes()
        assert filled.bits.tobytes() == stepped.bits.tobytes()


def test_a_team_is_no_larger_than_its_work() -> None:
    """Many cores do not crowd around one image: whole teams take images, as many as there are."""
    threads = 64
    network = LinearTransformer(replace(PRESETS["mnist"], n_layers=1))
    crews = NativeDecoder(network, 1, threads)._native.crews
    assert crews(1)[0] == 1
    most = crews(1)[1]
    assert 2 <= most <= 16
    for count in range(1, 2 * threads):
        teams, used = crews(count)
        assert 1 <= teams <= count
        assert min(count, threads) <= used <= min(threads, most * teams)
    assert crews(2 * threads) == (threads, threads)
    small = NativeDecoder(TINY, 1, threads)._native.crews
    assert small(1) == (1, 1)  # meeting would take longer than its products


@every_kind
@pytest.mark.parametrize("precision", ["bf16", "float32"])
def test_the_same_bytes_for_any_threads_and_company(
    config: ModelConfig, precision: Precision, isa: str
) -> None:
    """Images arrive at random, in any slot, and leave; alone and in teams of threads."""
    count = 40
    wide = replace(config, d_model=48, n_heads=3)
    network, inputs = network_of(wide), masked(wide, count, seed=3)
    alone = NativeDecoder(network, 1, 1, precision=precision, isa=isa)
    expected = []
    for image in range(count):
        alone.begin([0], inputs.rows([image]))
        alone.step([0], wide.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes(), alone.kv.tobytes()))
    for threads, team in ((1, 1), (2, 2), (3, 3), (5, 2), (9, 4)):
        generator = np.random.default_rng(threads)
        decoder = NativeDecoder(network, 37, threads, precision=precision, isa=isa, team=team)
        decoder.kv[:] = np.nan
        waiting, running = list(range(count)), dict[int, int]()
        while waiting or running:
            free = [slot for slot in range(37) if slot not in running]
            arriving = min(int(generator.choice([0, 1, 2, 30])), len(free), len(waiting))
            if arriving:
                slots = [int(slot) for slot in generator.permutation(free)[:arriving]]
                images = [waiting.pop() for _ in slots]
                decoder.begin(slots, inputs.rows(images))
                running.update(zip(slots, images, strict=True))
            listed = [*generator.permutation(list(running)), -1]
            decoder.step(np.array(listed, np.int32), int(generator.integers(1, 8)))
            for slot in [s for s in running if decoder.positions[s] == wide.pixels]:
                one = (decoder.canvas[slot], decoder.bits[slot], decoder.kv[slot])
                assert tuple(part.tobytes() for part in one) == expected[running.pop(slot)]


def test_a_decoder_owns_its_weights() -> None:
    """Training on, or closing the model, does not reach into a running decoder."""
    config = tiny_config()
    network, inputs = network_of(config), blank(config, 1)
    decoder = NativeDecoder(network, 1)
    before = trace(decoder, inputs)[0].copy()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert np.array_equal(trace(decoder, inputs)[0], before)


# Input that makes no sense.


@pytest.mark.parametrize("slots", [[0, 1, 0], [3], [-2], [2**31 - 1]], ids=str)
def test_wrong_slots_are_refused(slots: list[int]) -> None:
    decoder = NativeDecoder(TINY, 3)
    rows = np.array(slots, np.int64).astype(np.int32)
    with pytest.raises(ValueError, match="slots must be"):
        decoder.step(rows, 1)
    assert decoder.positions.tolist() == [0, 0, 0]
    decoder.step([0, 1, 2], 1)  # and nothing is left of it
    assert decoder.positions.tolist() == [1, 1, 1]


@pytest.mark.parametrize("length", [-1, tiny_config().pixels + 1])
def test_wrong_lengths_are_refused(length: int) -> None:
    decoder = NativeDecoder(TINY, 2)
    slots, lengths = np.array([0, 1], np.int32), np.array([3, length], np.int32)
    with pytest.raises(ValueError, match="no such number of pixels"):
        decoder._native.begin(slots, lengths)
    assert decoder.positions.tolist() == [0, 0]


def test_an_image_that_overflows_leaves_no_trace(isa: str) -> None:
    """A slot whose label's embedding is infinite is lost; the next image in its place is not."""
    config = tiny_config(classes=("cat", "dog"))
    network, inputs = network_of(config), blank(config, 2)
    assert network.label_embedding is not None
    with torch.no_grad():
        network.label_embedding.weight[0] = torch.inf
    inputs.label[:] = [0, 1]
    clean = NativeDecoder(network, 1, 1, isa=isa)
    clean.begin([0], inputs.rows([1]))
    clean.step([0], config.pixels)
    decoder = NativeDecoder(network, 1, 1, isa=isa)
    for row in (0, 1):
        decoder.begin([0], inputs.rows([row]))
        decoder.step([0], config.pixels)
        assert np.isfinite(decoder.bits).all() == (row == 1)
    assert decoder.canvas.tobytes() == clean.canvas.tobytes()
    assert decoder.bits.tobytes() == clean.bits.tobytes()


@every_kind
def test_extreme_numbers_stay_in_range(config: ModelConfig, isa: str) -> None:
    """No temperature or weight, finite or not, leads outside the arrays."""
    extremes = [0.0, 1e-45, 1e-38, 1e-9, 1e9, 3e38, np.inf, np.nan]
    count = len(extremes)
    for scale in (1.0, 1e4, 1e30):
        network = network_of(config)
        with torch.no_grad():
            for parameter in network.head.parameters():
                parameter.mul_(scale)
        decoder = NativeDecoder(network, count, 2, isa=isa)
        decoder.begin(list(range(count)), blank(config, count))
        decoder.inputs.temperature[:] = extremes  # past the door, where `load` refuses most of them
        decoder.step(np.arange(count, dtype=np.int32), config.pixels)
        assert (decoder.positions == config.pixels).all()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        NativeDecoder(TINY, 1, 0)
    with pytest.raises(ValueError, match="team must be at least 1, not 0"):
        NativeDecoder(TINY, 1, 1, team=0)
    with pytest.raises(ValueError, match=r"isa must be one of avx512bf16, .*, not 'mmx'"):
        NativeDecoder(TINY, 1, isa="mmx")
    with pytest.raises(ValueError, match="precision must be bf16 or float32"):
        NativeDecoder(TINY, 1, precision="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_slots"):
        NativeDecoder(TINY, 0)
    with pytest.raises(ValueError, match="backend must be one of auto, native, reference"):
        open_decoder(TINY, 1, "cuda")


def test_an_isa_that_the_cpu_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_build, "cpu", lambda: ("Old CPU", frozenset({"avx2", "fma"})))
    assert native_build.cpu_isas() == ["avx2", "portable"]
    with pytest.raises(BackendError, match=r"Old CPU\) has no avx512; it has avx2, portable"):
        NativeDecoder(TINY, 1, isa="avx512")


# Building.


def test_a_build_is_kept_and_used_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native.load_library("portable")
    (built,) = cache.iterdir()
    assert built.name.startswith("decoder-portable-")
    monkeypatch.setattr(native_build, "_build", None)
    native.load_library("portable")


def test_two_processes_may_build_at_once(cache: Path) -> None:
    program = (
        "from scanline.kernels.native import abi; "
        "print(abi.load_library('portable').scanline_isa())"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        assert process.communicate(timeout=120)[0].strip() == b"b'portable'"
        assert process.returncode == 0
    assert len(list(cache.iterdir())) == 1


def test_a_damaged_build_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native.load_library("portable")
    (built,) = cache.iterdir()
    other = cache.with_name("other")
    other.mkdir()
    damaged = other / built.name
    damaged.write_bytes(b"half a build")
    monkeypatch.setenv("SCANLINE_CACHE", str(other))
    native.load_library("portable")
    assert "does not load, building it again" in caplog.text
    assert damaged.stat().st_size > 10_000


def test_a_cache_that_cannot_be_written(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file where the folder should be stands for read-only: root may write anywhere."""
    cache.write_text("no folder")
    decoder = NativeDecoder(TINY, 1, isa="portable")
    decoder.step([0], 1)
    assert "set SCANLINE_CACHE to a writable folder" in caplog.text


def test_no_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # or auto takes the device
    with pytest.raises(BackendError, match=r"no C\+\+ compiler: install g\+\+"):
        open_decoder(TINY, 1, "native")
    assert isinstance(open_decoder(TINY, 1), ReferenceDecoder)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "install g++" in caplog.text


def test_builds_made_beforehand_need_no_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a Docker image does: built in one stage, run in another, on some other CPU."""
    isas = dict.fromkeys([native_build.cpu_isas()[0], "portable"])
    monkeypatch.setattr(native_build, "ISAS", {isa: native_build.ISAS[isa] for isa in isas})
    assert isas.keys() == {path.name.split("-")[1] for path in native_build.build_all()}
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(cache))
    assert open_decoder(TINY, 1, "native").backend == "native"


def test_a_compiler_that_fails(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\n[ $1 = --version ] || { echo 'error: no' >&2; exit 1; }\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BackendError, match=r"failed \(error: no\); name another one in CXX"):
        open_decoder(TINY, 1, "native")
    assert list(cache.iterdir()) == []
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(BackendError, match="CXX names '/nowhere/c\\+\\+', which is not there"):
        open_decoder(TINY, 1, "native")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("isa", native_build.ISAS)
def test_compilers_have_nothing_to_warn_of(compiler: str, isa: str, tmp_path: Path) -> None:
    # gcc looks for uninitialised values only where it optimises; all of clang's are the parser's.
    level = "-O1" if compiler == "g++" else "-fsyntax-only"
    flags = [*native_build.FLAGS, *native_build.ISAS[isa][0], *STRICT.split(), level]
    command = [compiler, *flags, str(native_build.DECODER), "-o", str(tmp_path / "native.so")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"no {compiler} here")
    if "unrecognized" in done.stderr or "unsupported option" in done.stderr:
        pytest.skip(f"{compiler} here is not for x86")
    assert done.stderr == ""
    assert done.returncode == 0


SANITIZED = """
import numpy as np
from tests.test_decoder import KINDS, masked, network_of
from tests.test_guesses import repetitive
from tests.test_native import ODD_SIZES
from scanline.model.decoders.native import NativeDecoder
for config in [*KINDS.values(), *list(ODD_SIZES.values())[::2]]:
    inputs = masked(config, 5)
    for precision in ("bf16", "float32"):
        decoder = NativeDecoder(network_of(config), 7, 2, precision=precision)
        decoder.begin([6, 0, 3, 2, 1], inputs)
        decoder.step([0], 2)
        decoder.step([6, 0, -1, 3, 2, 1], config.pixels)
        assert (decoder.positions[[6, 0, 3, 2, 1]] == config.pixels).all()
for config in KINDS.values():
    network, inputs = repetitive(config)
    decoder = NativeDecoder(network, 2, 2)
    decoder.begin([0, 1], inputs.rows([0, 1]))
    decoder.step([0, 1], 9)
    decoder.step([1], network.config.pixels)
print("clean")
"""


def test_sanitizers_find_nothing(cache: Path) -> None:
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
    environment = os.environ | {
        "CXX": "g++",
        "SCANLINE_CXXFLAGS": "-fsanitize=address,undefined -fno-sanitize-recover=all -O1",
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "clean\n", done.stderr[-3000:]


# Threads.


def test_the_gil_is_released() -> None:
    """Another thread goes on in Python while one long call runs."""
    config = tiny_config(height=64, width=64, d_model=64, n_layers=4)
    decoder = NativeDecoder(LinearTransformer(config), 8, 1)
    turns = 0
    finished = threading.Event()

    def run() -> None:
        decoder.step(np.arange(8, dtype=np.int32), config.pixels)
        finished.set()

    worker = threading.Thread(target=run)
    worker.start()
    while not finished.is_set():
        turns += 1
        time.sleep(0)
    worker.join()
    assert turns > 10


def test_the_threads_of_an_idle_decoder_sleep() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("only Linux tells what a thread does")
    before = set(tasks.iterdir())
    decoder = NativeDecoder(TINY, 8, 4)
    decoder.step(np.arange(8, dtype=np.int32), 5)
    workers = set(tasks.iterdir()) - before
    assert len(workers) == 3  # the fourth is the caller's

    def woken() -> list[int] | None:
        """Count how often each thread has been put on a core; None while one of them runs."""
        counts = []
        for worker in workers:
            status = (worker / "status").read_text()
            if "\nState:\tS" not in status:
                return None
            counts.append(sum(int(n) for n in re.findall(r"ctxt_switches:\t(\d+)", status)))
        return counts

    until(woken, "sleep")  # the threads spin for a moment in case there is more
    asleep = woken()
    time.sleep(0.3)
    assert woken() == asleep


# The benchmark.


def test_the_benchmark_reports_every_backend() -> None:
    report = bench.run_bench(
        ["mnist-paper"], backends=["native", "reference"], slots=[1, 3], threads=1,
        seconds=0.01, repeats=1,
        progress=(lines := list[str]()).append,
    )  # fmt: skip
    assert [(t.backend, t.slots) for t in report.timings] == [
        ("native", 1), ("native", 3), ("reference", 1), ("reference", 3),
    ]  # fmt: skip
    assert all(t.milliseconds_a_step > 0 and t.images_a_second > 0 for t in report.timings)
    for timing in report.timings:
        assert timing.limit in ("compute", "bytes")
        assert timing.times_limit is not None
        assert any(f"{timing.times_limit:.2f} × {timing.limit}" in line for line in lines)
    assert report.hardware["cpu"] in lines[0]
    assert all(peak > 0 for peak in report.peaks.values())
    with pytest.raises(ValueError, match=r"there is no 'imagenet'; there are .*mnist-paper"):
        bench.run_bench(["imagenet"])


@pytest.mark.parametrize(
    ("operations", "rate", "limit"),
    [
        (1e9, 1e12, ("compute", 64 * 12.9e6 / 1e9)),
        (1e15, 1e9, ("bytes", (12.6e6 + 64 * 540e3) / 1e9)),
    ],
)
def test_a_limit_is_what_takes_the_machine_longer(
    monkeypatch: pytest.MonkeyPatch, operations: float, rate: float, limit: tuple[str, float]
) -> None:
    peaks = native.Peaks(operations, operations, rate, rate)
    monkeypatch.setattr(limits, "measure_peaks", lambda library, threads: peaks)
    monkeypatch.setattr(limits, "measure_bandwidth", lambda library, threads, size: rate)
    machine = limits.Machine(native.load_library("portable"), 1)
    found = machine.limit(PRESETS["mnist-paper"], 64)
    assert found.name == limit[0]
    assert found.seconds == pytest.approx(limit[1], rel=0.02)


def test_what_cannot_be_measured_is_told() -> None:
    library = native.load_library("portable")
    with pytest.raises(native_build.NativeBuildError, match="memory or threads are short"):
        native.measure_bandwidth(library, 1, 1 << 60)


def test_the_benchmark_times_nothing_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_another(
        model: LinearTransformer, max_slots: int, backend: str, threads: int | None
    ) -> Decoder:
        other = LinearTransformer(model.config)
        return open_decoder(other, max_slots, backend, threads)

    monkeypatch.setattr(bench, "open_decoder", open_another)
    with pytest.raises(RuntimeError, match="bits/dim from the reference: not timed"):
        bench.check(network_of(tiny_config()), "native", 1)


def test_the_peer_computes_the_same() -> None:
    pytest.importorskip("fast_transformers")
    Peer(bench.find_model("mnist-paper"), 2).check()


def test_the_benchmark_counts_the_papers_network() -> None:
    """The known figures: 12.6 MB of bf16 weights, 6,200 images' states at 3.35 TB/s."""
    config = PRESETS["mnist-paper"]
    assert limits.least_bytes(config, 0) == pytest.approx(12.6e6, rel=0.01)
    assert limits.operations(config) == pytest.approx(12.9e6, rel=0.02)
