"""The decoder's contract, for every backend that runs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import BackendError, Decoder
from scanline.model.decoders.opening import open_decoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer, State
from scanline.model.noise import image_noise
from tests.conftest import assert_close, random_network, tiny_config
from tests.test_network import FEW, few_variants

BACKENDS = ("reference", "native", pytest.param("triton", marks=pytest.mark.gpu))
# What bits may differ by from the network's own: the precision of the backend's weights.
PRECISION = {"reference": torch.float32, "native": torch.bfloat16, "triton": torch.bfloat16}

GREY = tiny_config(classes=("cat", "dog"))
RGB = tiny_config(channels=3, head="logistic_mixture", encoding="linear")
PAPER = tiny_config(
    input="previous", order="subpixel", channels=3, head="logistic_mixture", norm="post",
    activation="relu", positions="sinusoidal",
)  # fmt: skip
KINDS = {"grey": GREY, "rgb": RGB, "paper": PAPER}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Give each backend's name; skips, visibly, one that cannot run here."""
    name = str(request.param)
    try:
        open_decoder(LinearTransformer(tiny_config()), 1, name)
    except BackendError as error:
        pytest.skip(f"{name}: {error}")
    return name


def network_of(config: ModelConfig) -> LinearTransformer:
    return random_network(config, dtype=torch.float32)


@dataclass(frozen=True)
class Inputs:
    """What ``load`` takes, one row an image."""

    canvas: NDArray[np.uint8]
    known: NDArray[np.bool_]
    noise: NDArray[np.float32]
    temperature: NDArray[np.float32]
    label: NDArray[np.int32]

    def rows(self, rows: Sequence[int]) -> Inputs:
        return Inputs(*(getattr(self, field.name)[list(rows)] for field in fields(self)))


def blank(config: ModelConfig, count: int, seed: int = 0) -> Inputs:
    """Give ``count`` images with nothing known, each with its own seed, at temperature 1."""
    T, C = config.pixels, config.channels
    canvas = np.random.default_rng(seed).integers(0, 256, (count, T, C), np.uint8)
    noise = np.stack([image_noise(seed + i, T, config.draws) for i in range(count)])
    label = (np.arange(count) % (len(config.classes) + 1) - 1).astype(np.int32)
    return Inputs(canvas, np.zeros((count, T), np.bool_), noise, np.ones(count, np.float32), label)


def masked(config: ModelConfig, count: int, seed: int = 0) -> Inputs:
    """Give images of which about a third is known, in places anywhere, a prefix among them."""
    inputs = blank(config, count, seed)
    generator = np.random.default_rng(seed + 1)
    inputs.known[:] = generator.random(inputs.known.shape) < 0.3
    for row in range(count):
        inputs.known[row, : row % 4] = True
    inputs.temperature[:] = generator.choice([0.0, 0.7, 1.0, 1.3], count)
    return inputs


def put(decoder: Decoder, slots: Sequence[int], inputs: Inputs) -> None:
    decoder.reset(np.array(slots, np.int32))
    decoder.load(
        np.array(slots, np.int32),
        inputs.canvas, inputs.known, inputs.noise, inputs.temperature, inputs.label,
    )  # fmt: skip


def draw(
    network: LinearTransformer, backend: str, inputs: Inputs
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw the images all together, in as many slots, and give their pixels and bits."""
    slots = np.arange(len(inputs.canvas), dtype=np.int32)
    decoder = open_decoder(network, len(slots), backend)
    put(decoder, slots.tolist(), inputs)
    decoder.step(slots, network.config.pixels)
    assert (decoder.positions == network.config.pixels).all()
    return decoder.canvas.copy(), decoder.bits.copy()


def network_bits(
    network: LinearTransformer, canvas: NDArray[np.uint8], inputs: Inputs
) -> NDArray[np.float32]:
    classes = len(network.config.classes)
    labels = torch.from_numpy(np.where(inputs.label < 0, classes, inputs.label)).long()
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(canvas), labels if classes else None)
    result: NDArray[np.float32] = bits.numpy()
    return result


def state_of(decoder: Decoder) -> list[NDArray[np.float32]]:
    """Give views of a backend's sums with the slots first, to poison and to compare."""
    if isinstance(decoder, ReferenceDecoder):
        return [decoder.state.kv.numpy().swapaxes(0, 1), decoder.state.z.numpy().swapaxes(0, 1)]
    return [getattr(decoder, name) for name in ("kv", "z")]


# What the reference is.


@torch.no_grad()
@few_variants
def test_the_reference_is_the_network_and_its_head(config: ModelConfig) -> None:
    """One image drawn by hand with ``network.step`` and ``head.sample``; known pixels stay."""
    network = network_of(config)
    inputs = masked(config, 3, seed=4)
    drawn, _ = draw(network, "reference", inputs)
    for row in range(3):
        canvas = np.where(inputs.known[row][:, None], inputs.canvas[row], 0)
        label = None
        if config.classes:
            chosen = int(inputs.label[row])
            label = torch.tensor([len(config.classes) if chosen < 0 else chosen])
        state = State.zeros(config, 1)
        for step in range(config.steps):
            pixel, part = divmod(step, config.steps_per_pixel)
            mine = slice(part * config.step_channels, (part + 1) * config.step_channels)
            known = inputs.known[row, pixel]
            if step == 0 and config.start == "given":
                if not known:
                    canvas[0, mine] = config.first_value
                continue
            parameters, state = network.step(
                torch.from_numpy(canvas[None]), torch.tensor([step]), state, label
            )
            if not known:
                uniforms = inputs.noise[row, pixel].reshape(config.steps_per_pixel, -1)[part]
                canvas[pixel, mine] = network.head.sample(
                    parameters,
                    torch.from_numpy(uniforms[None].copy()),
                    torch.from_numpy(inputs.temperature[row : row + 1]),
                )[0].numpy()
        assert np.array_equal(drawn[row], canvas)


def test_samples_are_not_trivial() -> None:
    """These small networks draw varied pixels, or equal bytes below would mean little."""
    for config in KINDS.values():
        drawn, _ = draw(network_of(config), "reference", blank(config, 4))
        assert len(np.unique(drawn)) > 20
        assert not np.array_equal(drawn[0], drawn[1])


# What every backend promises.


@few_variants
def test_bits_are_the_networks_for_the_finished_image(config: ModelConfig, backend: str) -> None:
    network, inputs = network_of(config), masked(config, 4)
    canvas, bits = draw(network, backend, inputs)
    expected = network_bits(network, canvas, inputs)
    assert_close(torch.from_numpy(bits), torch.from_numpy(expected), PRECISION[backend])


@every_kind
def test_known_pixels_stay_wherever_they_are(config: ModelConfig, backend: str) -> None:
    network, inputs = network_of(config), masked(config, 6)
    inputs.known[0] = False
    inputs.known[0, 7:12] = True  # a patch in the middle
    inputs.known[1] = True  # all of it
    inputs.known[2] = np.arange(config.pixels) == config.pixels - 1  # the last pixel
    canvas, _ = draw(network, backend, inputs)
    assert np.array_equal(canvas[inputs.known], inputs.canvas[inputs.known])
    unknown = ~inputs.known
    assert (canvas[unknown] != inputs.canvas[unknown]).mean() > 0.5  # the others were drawn


@every_kind
def test_unknown_pixels_of_the_upload_leave_no_trace(config: ModelConfig, backend: str) -> None:
    """What stands where the mask says "paint" must not reach the model."""
    network, inputs = network_of(config), masked(config, 3)
    before, bits = draw(network, backend, inputs)
    inputs.canvas[~inputs.known] = 255 - inputs.canvas[~inputs.known]
    after, bits_after = draw(network, backend, inputs)
    assert np.array_equal(before, after)
    assert np.array_equal(bits, bits_after)


@every_kind
@pytest.mark.parametrize("together", [True, False])
def test_prefill_equals_stepping(config: ModelConfig, together: bool, backend: str) -> None:
    """The state, the bits and the position after known pixels, and what follows from them.

    Slots prefilled one by one too: then a backend shares one image's steps among its threads.
    """
    network, inputs = network_of(config), blank(config, 4)
    inputs.known[:] = True
    lengths = np.array([0, 1, 9, config.pixels], np.int32)
    slots = np.arange(4, dtype=np.int32)
    stepped = open_decoder(network, 4, backend)
    put(stepped, [0, 1, 2, 3], inputs)
    for slot, length in enumerate(lengths):
        stepped.step(slots[slot : slot + 1], int(length))
    filled = open_decoder(network, 4, backend)
    put(filled, [0, 1, 2, 3], inputs)
    for some in [slots] if together else np.split(slots, 4):
        filled.prefill(some, lengths[some])
    dtype = PRECISION[backend]
    assert np.array_equal(filled.positions, lengths)
    assert np.array_equal(stepped.positions, lengths)
    for mine, theirs in zip(state_of(filled), state_of(stepped), strict=True):
        assert_close(torch.from_numpy(mine.copy()), torch.from_numpy(theirs.copy()), dtype)
    for decoder in (stepped, filled):
        for slot, length in enumerate(lengths):
            assert (decoder.bits[slot, length:] == 0).all()
        decoder.step(slots, config.pixels)
    assert_close(torch.from_numpy(filled.bits), torch.from_numpy(stepped.bits), dtype)
    expected = torch.from_numpy(network_bits(network, inputs.canvas, inputs))
    assert_close(torch.from_numpy(filled.bits), expected, dtype)


@every_kind
def test_prefill_skips_slot_minus_one(config: ModelConfig, backend: str) -> None:
    network, inputs = network_of(config), blank(config, 3)
    inputs.known[:] = True
    decoder = open_decoder(network, 3, backend)
    put(decoder, [0, 1, 2], inputs)
    decoder.prefill(np.array([-1, 2, -1], np.int32), np.array([5, 4, 10_000], np.int32))
    assert decoder.positions.tolist() == [0, 0, 4]


def test_prefill_of_unknown_pixels_is_refused(backend: str) -> None:
    inputs = blank(GREY, 2)
    inputs.known[:, :6] = True
    decoder = open_decoder(network_of(GREY), 2, backend)
    put(decoder, [0, 1], inputs)
    before = [part.copy() for part in state_of(decoder)]
    with pytest.raises(ValueError, match="slot 1: not all of its first 7 pixels are known"):
        decoder.prefill([0, 1], [6, 7])
    assert decoder.positions.tolist() == [0, 0]  # checked before anything is done
    for old, new in zip(before, state_of(decoder), strict=True):
        assert np.array_equal(old, new)


@pytest.mark.parametrize("length", [-1, GREY.pixels + 1])
def test_prefill_of_no_such_length_is_refused(length: int, backend: str) -> None:
    inputs = blank(GREY, 1)
    inputs.known[:] = True
    decoder = open_decoder(network_of(GREY), 1, backend)
    put(decoder, [0], inputs)
    with pytest.raises(ValueError, match=f"slot 0: an image has no first {length} pixels"):
        decoder.prefill([0], [length])
    assert decoder.positions.tolist() == [0]


@pytest.mark.parametrize("noise", [0.0, 1.0, np.nan])
def test_noise_out_of_its_range_is_refused(noise: float, backend: str) -> None:
    decoder, inputs = open_decoder(network_of(GREY), 1, backend), blank(GREY, 1)
    inputs.noise[0, 3] = noise
    with pytest.raises(ValueError, match="the noise must lie between 0 and 1"):
        put(decoder, [0], inputs)


@pytest.mark.parametrize("temperature", [-0.5, np.inf, np.nan])
def test_temperatures_out_of_their_range_are_refused(temperature: float, backend: str) -> None:
    decoder, inputs = open_decoder(network_of(GREY), 1, backend), blank(GREY, 1)
    inputs.temperature[0] = temperature
    with pytest.raises(ValueError, match="temperatures must be 0 or more"):
        put(decoder, [0], inputs)


@pytest.mark.parametrize("label", [-2, 2, 100])
def test_labels_the_network_lacks_are_refused(label: int, backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 2, backend)
    inputs = blank(GREY, 2)
    inputs.label[1] = label
    with pytest.raises(ValueError, match="labels must be -1 … 1"):
        put(decoder, [0, 1], inputs)
    assert decoder.label.tolist() == [-1, -1]
    assert (decoder.canvas == 0).all()


def test_a_network_without_classes_takes_no_label(backend: str) -> None:
    decoder, inputs = open_decoder(network_of(RGB), 1, backend), blank(RGB, 1)
    inputs.label[0] = 0
    with pytest.raises(ValueError, match="labels must be -1"):
        put(decoder, [0], inputs)


def test_each_label_draws_another_image(backend: str) -> None:
    """One seed, four rows: the same without a label twice, another one for each class."""
    network, inputs = network_of(GREY), blank(GREY, 4)
    inputs.noise[:] = inputs.noise[0]
    inputs.label[:] = [-1, 0, 1, -1]
    canvas, _ = draw(network, backend, inputs)
    assert np.array_equal(canvas[0], canvas[3])
    assert len({row.tobytes() for row in canvas}) == 3


@every_kind
def test_temperature_zero_needs_no_noise(config: ModelConfig, backend: str) -> None:
    network, inputs = network_of(config), blank(config, 3)
    inputs.temperature[:] = [0, 0, 1]
    inputs.label[:] = -1
    canvas, bits = draw(network, backend, inputs)
    assert np.array_equal(canvas[0], canvas[1])
    assert not np.array_equal(canvas[0], canvas[2])
    assert bits[0].sum() < bits[2].sum()


@every_kind
def test_step_stops_at_the_last_pixel(config: ModelConfig, backend: str) -> None:
    decoder = open_decoder(network_of(config), 2, backend)
    put(decoder, [0, 1], blank(config, 2))
    decoder.step([0], config.pixels - 1)
    assert decoder.positions.tolist() == [config.pixels - 1, 0]
    decoder.step([0, 1], 10**6)
    assert decoder.positions.tolist() == [config.pixels] * 2
    parts: list[NDArray[Any]] = [decoder.canvas, decoder.bits, *state_of(decoder)]
    before = [part.copy() for part in parts]
    decoder.step([0, 1], 5)
    decoder.step([0, 1], 0)
    for old, new in zip(before, parts, strict=True):
        assert np.array_equal(old, new)


@every_kind
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (7,)], ids=str)
def test_many_small_steps_equal_one_large(
    config: ModelConfig, sizes: tuple[int, ...], backend: str
) -> None:
    network, inputs = network_of(config), masked(config, 3)
    whole, whole_bits = draw(network, backend, inputs)
    decoder = open_decoder(network, 3, backend)
    put(decoder, [0, 1, 2], inputs)
    done = 0
    while done < config.pixels:
        n = sizes[done % len(sizes)]
        decoder.step([0, 1, 2], n)
        done += n
        assert (decoder.positions == min(done, config.pixels)).all()
    assert np.array_equal(decoder.canvas, whole)
    assert np.array_equal(decoder.bits, whole_bits)


@every_kind
def test_other_slots_are_not_read_and_not_written(config: ModelConfig, backend: str) -> None:
    """Slots 1 and 3 work among slots full of NaN, which neither move nor spread."""
    network, inputs = network_of(config), masked(config, 2)
    clean, clean_bits = draw(network, backend, inputs)
    decoder = open_decoder(network, 5, backend)
    others = [0, 2, 4]
    for part in (decoder.bits, decoder.noise, decoder.temperature, *state_of(decoder)):
        part[others] = np.nan
    decoder.canvas[others], decoder.positions[others], decoder.known[others] = 77, 3, 1
    parts: list[NDArray[Any]] = [
        decoder.bits, decoder.noise, decoder.temperature, decoder.canvas, decoder.positions,
        decoder.known, decoder.label, *state_of(decoder),
    ]  # fmt: skip
    before = [part[others].copy() for part in parts]
    padded = Inputs(*(getattr(inputs, f.name)[[0, 0, 1]] for f in fields(inputs)))
    put(decoder, [1, -1, 3], padded)
    decoder.step(np.array([-1, 3, -1, 1, -1], np.int32), 4)
    decoder.step(np.array([1, 3, -1], np.int32), config.pixels)
    for old, new in zip(before, parts, strict=True):
        assert np.array_equal(old, new[others], equal_nan=np.issubdtype(old.dtype, np.floating))
    assert np.array_equal(decoder.canvas[[1, 3]], clean)
    assert np.array_equal(decoder.bits[[1, 3]], clean_bits)
    # And a slot full of NaN is as good as new once it is reset and loaded.
    put(decoder, [4, 0], inputs)
    decoder.step([0, 4], config.pixels)
    assert np.array_equal(decoder.canvas[[4, 0]], clean)
    assert np.array_equal(decoder.bits[[4, 0]], clean_bits)


def test_slots_that_are_not_there_or_named_twice_are_refused(backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 3, backend)
    put(decoder, [0, 1, 2], blank(GREY, 3))
    for slots in ([0, 1, 0], [3], [-2]):
        for method in (
            decoder.reset,
            lambda rows: decoder.step(rows, 1),
            lambda rows: decoder.prefill(rows, [0] * len(rows)),
        ):
            with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
                method(np.array(slots, np.int32))
    assert decoder.positions.tolist() == [0, 0, 0]


def test_no_slots_at_all_is_nothing_to_do(backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 2, backend)
    for slots in (np.array([], np.int32), np.array([-1, -1], np.int32)):
        decoder.reset(slots)
        decoder.step(slots, 3)
        decoder.prefill(slots, np.zeros(len(slots), np.int32))
    assert decoder.positions.tolist() == [0, 0]
    assert (decoder.canvas == 0).all()


@every_kind
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_bytes_among_others(
    config: ModelConfig, seed: int, backend: str
) -> None:
    """Images that arrive and leave at random, in any slot and order, equal those drawn alone."""
    network, inputs = network_of(config), masked(config, 12, seed=seed)
    generator = np.random.default_rng(seed)
    leading = [int(np.argmin(np.append(row, False))) for row in inputs.known]
    prefilled = [length if generator.random() < 0.5 else 0 for length in leading]
    alone = open_decoder(network, 1, backend)
    expected: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = []
    for image in range(12):
        put(alone, [0], inputs.rows([image]))
        alone.prefill([0], [prefilled[image]])
        alone.step([0], config.pixels)
        expected.append((alone.canvas[0].copy(), alone.bits[0].copy()))

    decoder = open_decoder(network, 5, backend)
    waiting, running, finished = list(range(12)), dict[int, int](), 0
    cancelled = {3, 8}  # these leave half-way, and come again at the end
    waiting += sorted(cancelled)
    while waiting or running:
        free = [slot for slot in range(5) if slot not in running]
        arriving = min(int(generator.integers(0, 3)), len(free), len(waiting))
        if not running:
            arriving = max(arriving, 1)
        if arriving:
            slots = [int(slot) for slot in generator.permutation(free)[:arriving]]
            images = [waiting.pop(0) for _ in slots]
            put(decoder, slots, inputs.rows(images))
            decoder.prefill(slots, [prefilled[image] for image in images])
            running |= dict(zip(slots, images, strict=True))
        order = generator.permutation([*running, -1]).astype(np.int32)
        decoder.step(order, int(generator.integers(1, 6)))
        for slot, image in list(running.items()):
            if image in cancelled and decoder.positions[slot] > 8:
                cancelled.remove(image)
                del running[slot]
            elif decoder.positions[slot] == config.pixels:
                canvas, bits = expected[image]
                assert np.array_equal(decoder.canvas[slot], canvas), image
                assert np.array_equal(decoder.bits[slot], bits), image
                finished += 1
                del running[slot]
    assert finished == 12


@pytest.mark.parametrize("channels", [1, 3])
def test_an_imported_network_begins_with_its_first_value(channels: int, backend: str) -> None:
    """The first value is the caller's, or else the config's; either way it costs nothing."""
    config = tiny_config(
        input="previous", order="subpixel", head="logistic_mixture", positions="sinusoidal",
        norm="post", start="given", first_value=200, channels=channels,
    )  # fmt: skip
    network, inputs = network_of(config), blank(config, 2)
    inputs.known[1, 0] = True
    inputs.canvas[1, 0] = 31
    canvas, bits = draw(network, backend, inputs)
    assert canvas[0, 0, 0] == 200
    assert canvas[1, 0].tolist() == [31] * channels
    assert (bits[:, 0] == 0).all() == (channels == 1)
    prefilled = open_decoder(network, 1, backend)
    put(prefilled, [0], inputs.rows([1]))
    prefilled.prefill([0], [1])
    assert prefilled.positions.tolist() == [1]
    assert_close(
        torch.from_numpy(prefilled.bits[:, 0]), torch.from_numpy(bits[1:, 0]), PRECISION[backend]
    )
    prefilled.step([0], config.pixels)
    assert_close(
        torch.from_numpy(prefilled.bits[0]),
        torch.from_numpy(network_bits(network, prefilled.canvas, inputs.rows([1]))[0]),
        PRECISION[backend],
    )


def test_resetting_a_slot_forgets_its_image(backend: str) -> None:
    network, inputs = network_of(GREY), masked(GREY, 2)
    expected, _ = draw(network, backend, inputs)
    decoder = open_decoder(network, 1, backend)
    for row in (0, 1, 0):
        put(decoder, [0], inputs.rows([row]))
        assert decoder.positions.tolist() == [0]
        assert (decoder.bits == 0).all()
        decoder.step([0], 11 if row else GREY.pixels)  # the second image leaves early
        if row == 0:
            assert np.array_equal(decoder.canvas[0], expected[0])


def test_the_arrays_are_as_documented(backend: str) -> None:
    decoder = open_decoder(network_of(RGB), 3, backend)
    T = RGB.pixels
    assert decoder.canvas.shape == (3, T, 3)
    assert decoder.canvas.dtype == np.uint8
    assert decoder.bits.shape == (3, T)
    assert decoder.bits.dtype == np.float32
    assert decoder.positions.shape == (3,)
    assert decoder.positions.dtype == np.int32
    assert decoder.noise.shape == (3, T, RGB.draws)
    assert decoder.backend == backend
    assert decoder.max_slots == 3


def test_the_weights_are_those_at_opening(backend: str) -> None:
    """A decoder in use does not notice that its model is trained further."""
    network, inputs = network_of(GREY), blank(GREY, 1)
    expected, _ = draw(network, backend, inputs)
    decoder = open_decoder(network, 1, backend)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    put(decoder, [0], inputs)
    decoder.step([0], GREY.pixels)
    assert np.array_equal(decoder.canvas, expected)


def test_the_reference_runs_in_float64_too() -> None:
    network, inputs = network_of(GREY), blank(GREY, 2)
    decoder = ReferenceDecoder(network, 2, torch.float64)
    put(decoder, [0, 1], inputs)
    decoder.step([0, 1], GREY.pixels)
    assert decoder.state.kv.dtype == torch.float64
    exact = network_bits(network.double(), decoder.canvas, inputs)
    assert_close(torch.from_numpy(decoder.bits), torch.from_numpy(exact).float())


# Choosing a backend.


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backend must be .*reference.*, not 'quantum'"):
        open_decoder(network_of(GREY), 1, "quantum")


def test_no_slots_are_refused(backend: str) -> None:
    with pytest.raises(ValueError, match="max_slots must be at least 1, not 0"):
        open_decoder(network_of(GREY), 0, backend)


def test_auto_opens_something_that_draws() -> None:
    network, inputs = network_of(GREY), blank(GREY, 1)
    decoder = open_decoder(network, 1)
    put(decoder, [0], inputs)
    decoder.step([0], GREY.pixels)
    assert decoder.positions.tolist() == [GREY.pixels]
    assert np.array_equal(decoder.canvas, draw(network, decoder.backend, inputs)[0])


def test_the_few_variants_have_every_start_and_order() -> None:
    assert {c.start for c in FEW.values()} == {"learned", "given"}
    assert {(c.order, c.channels) for c in FEW.values()} >= {
        ("pixel", 1), ("pixel", 3), ("subpixel", 3),
    }  # fmt: skip
