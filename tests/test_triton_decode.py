"""The Triton decoder against float64: under the interpreter in float32, on a device in bf16 too.

Networks and images are tiny, as the interpreter takes a millisecond an operation. What every
backend promises is in test_decoder.py, and runs for this one where there is a device.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import logging
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

triton = pytest.importorskip("triton")

from scanline.kernels.cuda import decode as triton_decode  # noqa: E402
from scanline.kernels.cuda.decode import plan, variants  # noqa: E402
from scanline.kernels.cuda.sizes import COMPILED, allocate, allocate_weights, state_bytes  # noqa: E402
from scanline.model.bench import cpu as bench  # noqa: E402
from scanline.model.bench import cuda as bench_cuda  # noqa: E402
from scanline.model.config import PRESETS, ModelConfig  # noqa: E402
from scanline.model.decoders.contract import BackendError, Inputs  # noqa: E402
from scanline.model.decoders.opening import open_decoder  # noqa: E402
from scanline.model.decoders.packing import Precision, sizes_of  # noqa: E402
from scanline.model.decoders.reference import ReferenceDecoder  # noqa: E402
from scanline.model.decoders.triton import TritonDecoder, find_device  # noqa: E402
from scanline.model.network import LinearTransformer  # noqa: E402
from tests.conftest import TOLERANCES, assert_close, random_network, tiny_config  # noqa: E402
from tests.test_decoder import blank, masked, network_of, noises, scatter_seeds  # noqa: E402
from tests.test_network import VARIANTS  # noqa: E402

INTERPRETED = bool(triton.knobs.runtime.interpret)
CUDA = torch.cuda.is_available() and not INTERPRETED
if not (INTERPRETED or CUDA):
    pytest.skip("needs TRITON_INTERPRET=1 or a CUDA device", allow_module_level=True)

gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CUDA, reason="needs a CUDA device, and no TRITON_INTERPRET"),
]

# What crosses in the kernels: how the past is embedded, and how the values of a step are decided.
# The blocks (norm, activation) and the rest run along; each option is there twice at least.
GRID = {
    name: replace(
        config, height=2 if config.steps_per_pixel == 1 else 1, width=3, n_layers=1 + i % 2
    )
    for i, (name, config) in enumerate(VARIANTS.items())
    if i % 11 == 5
}
ODD = {
    # Two tiles of the stream, the second one short, and heads that are no power of two.
    "wide": tiny_config(height=1, width=2, d_model=72, n_heads=3, d_ff=70, norm="post"),
    "heads of 70": tiny_config(height=1, width=2, d_model=70, n_heads=1, n_layers=1),
    "heads of 1": tiny_config(height=1, width=1, d_model=7, n_heads=7, d_ff=3, n_layers=1),
    "given": tiny_config(
        height=1, width=3, input="previous", order="subpixel", head="logistic_mixture",
        positions="sinusoidal", norm="post", start="given", first_value=200, channels=3,
        n_layers=1,
    ),
    "RGB tables": tiny_config(height=1, width=2, channels=3, n_layers=1),
    "RGB mixture": tiny_config(
        height=1, width=2, channels=3, n_layers=1, head="logistic_mixture", encoding="linear"
    ),
    "convolved": tiny_config(height=3, width=2, n_layers=1, short_conv="2x3"),
    "convolved subpixels": tiny_config(
        height=2, width=2, channels=3, order="subpixel", n_layers=1, n_heads=1, norm="post",
        short_conv="2x3",
    ),
}  # fmt: skip
SMALL = tiny_config(height=2, width=2, n_layers=1, classes=("cat", "dog"), short_conv="2x3")
RGB = tiny_config(
    height=1, width=2, n_layers=1, n_heads=1, channels=3, order="subpixel",
    head="logistic_mixture", norm="post",
)  # fmt: skip
every_small = pytest.mark.parametrize("config", [SMALL, RGB], ids=["grey", "rgb"])


def some(config: ModelConfig, count: int = 3, seed: int = 0) -> Inputs:
    """Give images a few of whose pixels are known, at several temperatures."""
    inputs = masked(config, count, seed)
    inputs.temperature[:] = np.resize(np.array([0.7, 1.0, 1.3], np.float32), count)
    return inputs


def slots_of(decoder: TritonDecoder) -> NDArray[np.int32]:
    return np.arange(decoder.max_slots, dtype=np.int32)


def exact(
    config: ModelConfig, canvas: NDArray[np.uint8], inputs: Inputs
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Give the network's parameters, bits and final state in float64."""
    network = random_network(config)  # the same draws as network_of's, before rounding
    network.load_state_dict(network_of(config).state_dict())
    labels, pixels = torch.from_numpy(inputs.label).long(), torch.from_numpy(canvas)
    with torch.no_grad():
        parameters = network(pixels, labels)
        bits = network.bits_from(parameters, pixels)
        states, _ = network.prefill(pixels, torch.full((len(canvas),), config.pixels), labels)
    sums = [torch.stack([state[f"attention.{x}"] for state in states], 1) for x in ("kv", "z")]
    return parameters, bits, sums


def check(config: ModelConfig, precision: Precision) -> None:
    """Draw two images pixel by pixel, and compare all that comes of it with the definition."""
    network, inputs = network_of(config), some(config, 2)
    scatter_seeds(inputs)
    inputs.temperature[0] = 0
    inputs.known[:, 0] = False  # or the first pixels would be absorbed, and not seen one by one
    decoder = TritonDecoder(network, 2, precision=precision)
    decoder.begin([0, 1], inputs)
    last = []  # the parameters of each pixel's last step
    for pixel in range(config.pixels):
        decoder.step([0, 1], 1)
        assert decoder.positions.tolist() == [pixel + 1] * 2
        last.append(decoder.buffers["parameters"][:2].cpu().clone())
    parameters = torch.stack(last, 1)
    expected, expected_bits, state = exact(config, decoder.canvas, inputs)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    given = int(config.start == "given")
    steps = torch.arange(config.pixels) * config.steps_per_pixel + config.steps_per_pixel - 1
    steps = steps[steps >= given]
    if len(steps):
        theirs = expected[:, steps - given]
        ours = parameters[:, -len(steps) :]
        assert (ours - theirs).abs().max() <= TOLERANCES[dtype]["rtol"] * theirs.abs().max()
    assert_close(torch.from_numpy(decoder.bits), expected_bits, dtype)
    for sums, theirs in zip((decoder.kv, decoder.z), state, strict=True):
        error = np.abs(sums - theirs.numpy()).max()
        assert error <= TOLERANCES[dtype]["rtol"] * theirs.abs().max()
    assert np.array_equal(decoder.canvas[inputs.known], inputs.canvas[inputs.known])
    for step in steps.tolist():  # each value drawn is what the head draws from these parameters
        pixel, part = divmod(step, config.steps_per_pixel)
        noise = noises(inputs, config)[:, pixel].reshape(2, config.steps_per_pixel, -1)[:, part]
        drawn = network.head.sample(
            parameters[:, pixel], torch.from_numpy(noise.copy()),
            torch.from_numpy(inputs.temperature),
        ).numpy()  # fmt: skip
        unknown = ~inputs.known[:, pixel]
        mine = decoder.canvas.reshape(2, config.steps, -1)[:, step]
        assert np.array_equal(mine[unknown], drawn[unknown])


def check_flights(config: ModelConfig, precision: Precision) -> None:
    """Launch one call after another, an image leaving its slot to another meanwhile, then land."""
    network, inputs = network_of(config), some(config)
    expected = []
    alone = TritonDecoder(network, 1, precision=precision)
    for image in range(3):
        alone.begin([0], inputs.rows([image]))
        alone.step([0], config.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes()))
    decoder = TritonDecoder(network, 2, precision=precision)
    decoder.begin([0, 1], inputs.rows([0, 1]))
    canvas, positions = decoder.canvas.copy(), decoder.positions.copy()
    decoder.launch([0, 1], 1)
    decoder.launch([1, 0], 1)
    assert np.array_equal(decoder.positions, positions)
    assert np.array_equal(decoder.canvas, canvas)
    decoder.begin([0], inputs.rows([2]))
    decoder.launch([0, 1], config.pixels)
    decoder.land()
    assert decoder.positions.tolist() == [config.pixels] * 2
    drawn = [(decoder.canvas[i].tobytes(), decoder.bits[i].tobytes()) for i in (0, 1)]
    assert drawn == [expected[2], expected[1]]


def draw(decoder: TritonDecoder, inputs: Inputs, n: int = 10**6) -> list[bytes]:
    """Draw all images in calls of ``n`` pixels; give everything that comes of it."""
    decoder.begin(list(range(len(inputs.canvas))), inputs)
    for _ in range(0, decoder.config.pixels, n):
        decoder.step(slots_of(decoder), n)
    assert (decoder.positions == decoder.config.pixels).all()
    return [x.tobytes() for x in (decoder.canvas, decoder.bits, decoder.kv, decoder.z)]


# Agreement.


@pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
def test_float32_agrees_with_float64(config: ModelConfig) -> None:
    check(config, "float32")


@every_small
def test_a_state_in_several_tiles_agrees_too(
    config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads too large for one tile of a program: here tiles of a column or two."""
    monkeypatch.setattr(triton_decode, "STATE_TILE", 16)
    check(config, "float32")


def test_the_grid_has_every_option() -> None:
    for option in (
        "input", "encoding", "order", "channels", "head", "norm", "activation", "positions",
        "start", "classes",
    ):  # fmt: skip
        here = {getattr(config, option) for config in [*GRID.values(), *ODD.values()]}
        assert here == {getattr(config, option) for config in VARIANTS.values()}, option


def test_it_draws_what_the_reference_draws() -> None:
    inputs, network = some(SMALL), network_of(SMALL)
    reference = ReferenceDecoder(network, 3)
    reference.begin([0, 1, 2], inputs)
    reference.step([0, 1, 2], SMALL.pixels)
    decoder = TritonDecoder(network, 3, precision="float32")
    draw(decoder, inputs)
    assert np.array_equal(decoder.canvas, reference.canvas)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, under the interpreter
@pytest.mark.parametrize("scale", [1.0, 1e30])
@every_small
def test_extreme_numbers_stay_in_range(config: ModelConfig, scale: float) -> None:
    """No temperature or weight, however large, leads outside an image."""
    extremes = [0.0, 1e-45, 1e-9, 3e38]
    network, inputs = network_of(config), blank(config, len(extremes))
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.mul_(scale)
    inputs.temperature[:] = extremes
    decoder = TritonDecoder(network, len(extremes))
    decoder.begin(list(range(len(extremes))), inputs)
    decoder.step(slots_of(decoder), 1)
    assert decoder.positions.tolist() == [1] * len(extremes)
    assert (decoder.canvas[:, 1:] == 0).all()


# The same bytes, however they are computed.


@every_small
def test_late_writes_change_nothing(config: ModelConfig) -> None:
    """Pixels, bits and sums are to the last bit those of writing the state at every step."""
    inputs, network = some(config), network_of(config)
    plain = draw(TritonDecoder(network, 3, delay=1), inputs)
    assert draw(TritonDecoder(network, 3, delay=4), inputs, 1) == plain


@every_small
def test_prefill_is_stepping_to_the_last_bit(config: ModelConfig) -> None:
    network, inputs = network_of(config), blank(config, 3)
    lengths = np.array([0, 1, config.pixels - 1], np.int32)
    stepped, filled = TritonDecoder(network, 3), TritonDecoder(network, 3)
    stepped.begin([0, 1, 2], inputs)
    for slot, length in enumerate(lengths):
        for _ in range(length):
            stepped.step([slot], 1)
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(config.pixels) < lengths[:, None]
    filled.begin([-1, 0, 1, 2], inputs.rows([0, 0, 1, 2]))
    for name in ("positions", "bits", "kv", "z"):
        assert getattr(filled, name).tobytes() == getattr(stepped, name).tobytes(), name
    assert np.array_equal(filled.positions, lengths)


@every_small
def test_other_slots_are_not_read_and_not_written(config: ModelConfig) -> None:
    """Two slots work among slots, and in scratch memory, full of NaN."""
    network, inputs = network_of(config), some(config, 2)
    clean = TritonDecoder(network, 2)
    draw(clean, inputs)
    decoder = TritonDecoder(network, 5)
    for buffer in decoder.buffers.values():
        if buffer.is_floating_point():
            buffer.fill_(torch.nan)
    others = [0, 2, 4]
    decoder.buffers["canvas"][others] = 77
    decoder.buffers["positions"][others] = 1
    images = {  # slots first
        name: buffer.transpose(0, 1) if name in ("kv", "z", "waiting", "ring") else buffer
        for name, buffer in decoder.buffers.items()
        if 5 in buffer.shape[:2]
    }
    assert len(images) == 15
    before = {name: buffer[others].clone() for name, buffer in images.items()}
    decoder.begin([1, 3], inputs)
    decoder.step(np.array([-1, 3, -1, 1], np.int32), 1)
    decoder.step(np.array([1, 3, -1], np.int32), config.pixels)
    decoder.step(np.array([1, 3], np.int32), 1)  # finished ones are left alone
    for name in ("canvas", "bits", "kv", "z"):
        mine, theirs = getattr(decoder, name)[[1, 3]], getattr(clean, name)
        assert mine.tobytes() == theirs.tobytes(), name
    for name, old in before.items():
        assert torch.equal(images[name][others].nan_to_num(-1), old.nan_to_num(-1)), name


@every_small
def test_what_is_launched_lands(config: ModelConfig) -> None:
    check_flights(config, "float32")


@every_small
def test_the_same_bytes_among_others(config: ModelConfig) -> None:
    """Images arrive at random, in any slot of which some were left half-way, and leave."""
    count, width = 3, 2
    network, inputs = network_of(config), some(config, count, seed=3)
    expected = []
    alone = TritonDecoder(network, 1)
    for image in range(count):
        alone.begin([0], inputs.rows([image]))
        alone.step([0], config.pixels)
        expected.append((alone.canvas.tobytes(), alone.bits.tobytes(), alone.kv.tobytes()))
    generator = np.random.default_rng(0)
    decoder = TritonDecoder(network, width)
    decoder.begin([0, 1], inputs.rows([2, 1]))
    decoder.step([1, 0], 1)  # cancelled after one pixel
    waiting, running = list(range(count)), dict[int, int]()
    while waiting or running:
        free = [slot for slot in range(width) if slot not in running]
        arriving = min(int(generator.integers(0, 3)), len(free), len(waiting))
        if arriving := max(arriving, int(not running)):
            slots = [int(slot) for slot in generator.permutation(free)[:arriving]]
            images = [waiting.pop() for _ in slots]
            decoder.begin(slots, inputs.rows(images))
            running |= dict(zip(slots, images, strict=True))
        decoder.step(generator.permutation([*running, -1]), int(generator.integers(1, 4)))
        for slot in [s for s in running if decoder.positions[s] == config.pixels]:
            mine = (decoder.canvas[slot], decoder.bits[slot], decoder.kv[slot])
            assert tuple(x.tobytes() for x in mine) == expected[running.pop(slot)]


# Input that makes no sense, and what is missing.


def test_wrong_arguments_are_refused() -> None:
    network = network_of(SMALL)
    decoder = TritonDecoder(network, 3)
    for slots in ([0, 1, 0], [3], [-2]):
        with pytest.raises(ValueError, match="slots must be -1 or different"):
            decoder.step(slots, 1)
    assert decoder.positions.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="precision must be bf16 or float32, not 'int8'"):
        TritonDecoder(network, 1, precision="int8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="delay must be at least 1, not 0"):
        TritonDecoder(network, 1, delay=0)
    with pytest.raises(ValueError, match="max_slots must be at least 1, not 0"):
        TritonDecoder(network, 0)


def test_without_a_device(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    network = LinearTransformer(SMALL)
    with pytest.raises(BackendError, match="needs an NVIDIA GPU and a CUDA build of PyTorch"):
        open_decoder(network, 1, "triton")
    assert open_decoder(network, 1).backend != "triton"
    assert "GPU" not in caplog.text  # nobody asked for one


def test_without_triton(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By name an error; ``auto`` says why it does not use the device, and draws on the CPU."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    network = LinearTransformer(SMALL)
    with pytest.raises(BackendError, match=r"pip install 'scanline\[gpu\]'"):
        open_decoder(network, 1, "triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert open_decoder(network, 1).backend != "triton"
    assert "decoding on the CPU: the triton backend needs Triton" in caplog.text


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(triton_decode, "run", fail)
    with pytest.raises(BackendError, match=r"\(Failed to find C compiler\); .* install gcc"):
        open_decoder(network_of(SMALL), 1, "triton")


def test_it_is_opened_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    decoder = open_decoder(network_of(SMALL), 2, "triton")
    assert isinstance(decoder, TritonDecoder)
    assert decoder.backend == "triton"
    assert "2 slots of 0.0" in caplog.text
    assert f"decoding with the triton backend, in {decoder.precision}" in caplog.text


# What is compiled ahead of time is what is launched.


def test_the_presets_are_compiled() -> None:
    for name, config in PRESETS.items():
        assert COMPILED[name] == sizes_of(config), name


def test_the_variants_are_the_launches() -> None:
    """Every launch of a preset is among them, once, and names all arguments of its kernel."""
    found = variants()
    names = [variant.name for variant in found]
    assert len(set(names)) == len(names)
    for variant in found:
        given = variant.signature.keys() | variant.constants.keys()
        assert given == set(variant.kernel.arg_names), variant.name
    sizes = COMPILED["mnist-paper"]
    launches = plan(sizes, allocate_weights(sizes, "meta"), allocate(sizes, 64, "meta"))
    assert len(launches) == 5 * 8 + 4
    compiled = [(v.kernel, v.signature, v.constants) for v in found]
    for launch in launches:
        mine = launch.variant("")
        assert (mine.kernel, mine.signature, mine.constants) in compiled


def test_bytes_of_a_step_are_counted() -> None:
    """Of one head with K = 32: plainly, 33 × 32 numbers there and back; then as documented."""
    one = replace(COMPILED["mnist-paper"], layers=1, heads=1, d_model=32)
    assert state_bytes(replace(one, delay=1)) == 4 * 2 * 33 * 32
    # Written in the fourth step; two numbers a feature in the others, and 1 + 2 + 3 read again.
    four = 4 * 33 * 32 + 33 * 32 + 3 * 64 + 6 * 64
    assert state_bytes(replace(one, delay=4)) == 4 * four / 4
    assert 3.35e12 / (state_bytes(COMPILED["mnist-paper"]) * 784) == pytest.approx(11_401, abs=1)


# The benchmark.


def test_the_benchmark_measures_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, on a tiny network and under the interpreter if need be."""
    config = tiny_config(height=1, width=2, n_layers=1, classes=("cat", "dog"))
    network, device = network_of(config), find_device()
    monkeypatch.setattr(bench, "find_models", lambda names: {"tiny": network})
    monkeypatch.setattr(bench_cuda, "find_device", lambda: device)
    monkeypatch.setattr(bench_cuda, "COPY_BYTES", 1 << 16)
    monkeypatch.setattr(bench_cuda, "TRAINING_IMAGES", {"tiny": 2})
    report = bench_cuda.run_bench(
        slots=[1, 2], seconds=0.01, repeats=1, progress=(lines := list[str]()).append
    )
    assert [(t.backend, t.slots) for t in report.timings] == [("triton", 1), ("triton", 2)]
    assert all(t.images_a_second > 0 and t.gbytes_a_second > 0 for t in report.timings)
    assert report.peaks["copy"] > 0
    assert [(t.model, t.images) for t in report.training] == [("tiny", 2)]
    assert report.training[0].pixels_a_second > 0
    for timing in report.timings:
        assert timing.limit == "bytes"
        assert timing.times_limit is not None
        copied = timing.times_limit * timing.gbytes_a_second
        assert copied == pytest.approx(report.peaks["copy"], abs=0.1)
    assert any("× bytes" in line for line in lines)
    json.dumps(asdict(report))


def test_the_benchmark_trains_nothing_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_of(SMALL)
    learn = bench_cuda._learn

    def wrong(model: LinearTransformer, canvas: torch.Tensor, bf16: bool = True) -> torch.Tensor:
        return learn(model, 255 - canvas if bf16 else canvas, bf16)

    bench_cuda.check_training("tiny", network)
    monkeypatch.setattr(bench_cuda, "_learn", wrong)
    with pytest.raises(RuntimeError, match=r"tiny in bf16: .* from the reference: not timed"):
        bench_cuda.check_training("tiny", network)


def test_the_benchmark_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="there is no CUDA device to time here"):
        bench_cuda.run_bench(["mnist-paper"])


# On a device.


class TestDevice:
    """Needs a CUDA device: both precisions, graphs, many slots, no leak."""

    pytestmark = gpu

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    @pytest.mark.parametrize("config", [*GRID.values(), *ODD.values()], ids=[*GRID, *ODD])
    def test_it_agrees_with_float64(self, config: ModelConfig, precision: Precision) -> None:
        check(config, precision)

    @every_small
    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_graphs_change_nothing(self, config: ModelConfig, precision: Precision) -> None:
        large = replace(config, height=7, width=5)
        inputs, network = some(large, 9), network_of(large)
        eager = TritonDecoder(network, 9, precision=precision, graphs=False)
        graphs = TritonDecoder(network, 9, precision=precision)
        expected = draw(eager, inputs)
        for n in (1, 3, 17, 10**6):
            assert draw(graphs, inputs, n) == expected

    @every_small
    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_what_is_launched_lands(self, config: ModelConfig, precision: Precision) -> None:
        check_flights(config, precision)

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    def test_late_writes_change_nothing(self, precision: Precision) -> None:
        config = replace(PRESETS["mnist-paper"], height=3)
        network, inputs = network_of(config), some(config, 5)
        plain = draw(TritonDecoder(network, 5, precision=precision, delay=1), inputs)
        assert draw(TritonDecoder(network, 5, precision=precision), inputs) == plain

    @pytest.mark.parametrize("precision", ["bf16", "float32"])
    @pytest.mark.parametrize("name", PRESETS)
    def test_ten_thousand_slots(self, name: str, precision: Precision) -> None:
        """Each of some rows spread among 10,000 is drawn as it is alone."""
        config = replace(PRESETS[name], height=2)
        network, count = LinearTransformer(config), 10_000
        inputs = some(config, 8).rows([i % 8 for i in range(count)])
        decoder = TritonDecoder(network, count, precision=precision)
        decoder.begin(list(range(count)), inputs)
        decoder.step(slots_of(decoder)[::-1], config.pixels)
        alone = TritonDecoder(network, 1, precision=precision)
        for row in range(8):
            alone.begin([0], inputs.rows([row]))
            alone.step([0], config.pixels)
            assert (decoder.canvas[row::8] == alone.canvas).all()
            assert (decoder.bits[row::8] == alone.bits).all()

    def test_memory_stays_flat(self) -> None:
        network, inputs = network_of(SMALL), some(SMALL, 16)
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

    def test_too_many_slots_are_refused(self) -> None:
        network = LinearTransformer(PRESETS["mnist-paper"])
        with pytest.raises(BackendError, match=r"10,000,000 slots of .* MiB do not fit"):
            TritonDecoder(network, 10_000_000)

    def test_auto_takes_the_device(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        assert open_decoder(network_of(SMALL), 1).backend == "triton"
        assert torch.cuda.get_device_name() in caplog.text
