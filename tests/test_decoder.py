"""The decoder's contract, for every backend that runs here."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.decoders.contract import BackendError, Decoder, Inputs
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.opening import open_decoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer
from scanline.model.noise import image_noise
from tests.conftest import assert_close, random_network, tiny_config
from tests.test_network import FEW, few_variants

BACKENDS = ("reference", "native", pytest.param("triton", marks=pytest.mark.gpu))
# What bits may differ by from the network's own: the precision of the backend's weights.
PRECISION = {"reference": torch.float32, "native": torch.bfloat16, "triton": torch.bfloat16}

GREY = tiny_config(classes=("cat", "dog"))
RGB = tiny_config(channels=3, head="logistic_mixture", encoding="linear", short_conv="2x3")
PAPER = tiny_config(
    input="previous", order="subpixel", channels=3, head="logistic_mixture", norm="post",
    activation="relu", positions="sinusoidal",
)  # fmt: skip
CONV = tiny_config(
    channels=3, order="subpixel", norm="post", classes=("cat", "dog"), short_conv="2x3"
)
KINDS = {"grey": GREY, "rgb": RGB, "paper": PAPER, "conv": CONV}
every_kind = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS.keys())
# And those of which a backend may know nothing.
LAYERS = KINDS | {"softmax": dataclasses.replace(GREY, attention="softmax")}
every_layer = pytest.mark.parametrize("config", LAYERS.values(), ids=LAYERS.keys())


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Give each backend's name; skips, visibly, one that cannot run here."""
    name = str(request.param)
    try:
        open_decoder(LinearTransformer(tiny_config()), 1, name)
    except BackendError as error:
        pytest.skip(f"{name}: {error}")
    callspec = getattr(request.node, "callspec", None)
    config = callspec.params.get("config") if callspec else None
    if name != "reference" and isinstance(config, ModelConfig) and config.attention != "linear":
        pytest.skip(f"{name}: does not know attention {config.attention!r}")
    return name


def network_of(config: ModelConfig) -> LinearTransformer:
    return random_network(config, dtype=torch.float32)


def blank(config: ModelConfig, count: int, seed: int = 0) -> Inputs:
    """Give ``count`` images with nothing known, each with its own seed, at temperature 1."""
    T, C = config.pixels, config.channels
    inputs = Inputs.blank(config, count)
    inputs.canvas[:] = np.random.default_rng(seed).integers(0, 256, (count, T, C), np.uint8)
    inputs.seed[:] = np.arange(seed, seed + count)
    inputs.label[:] = np.arange(count) % (len(config.classes) + 1) - 1
    return inputs


def noises(inputs: Inputs, config: ModelConfig) -> NDArray[np.float32]:
    """Give the uniforms of each image: ``[S, T, draws]``."""
    names = zip(inputs.seed.tolist(), inputs.particle.tolist(), strict=True)
    return np.stack([image_noise(seed, config.pixels, config.draws, i) for seed, i in names])


def scatter_seeds(inputs: Inputs) -> None:
    """Give images seeds and particles whose words are full of bits."""
    count = np.arange(1, len(inputs.seed) + 1, dtype=np.uint64)
    inputs.seed[:] = count * np.uint64(0x9E3779B97F4A7C15)
    inputs.particle[:] = count << np.uint64(31)


def masked(config: ModelConfig, count: int, seed: int = 0) -> Inputs:
    """Give images of which about a third is known, in places anywhere, a prefix among them."""
    inputs = blank(config, count, seed)
    generator = np.random.default_rng(seed + 1)
    inputs.known[:] = generator.random(inputs.known.shape) < 0.3
    for row in range(count):
        inputs.known[row, : row % 4] = True
    inputs.temperature[:] = generator.choice([0.0, 0.7, 1.0, 1.3], count)
    return inputs


def draw(
    network: LinearTransformer, backend: str, inputs: Inputs
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Draw the images all together, in as many slots, and give their pixels and bits."""
    slots = np.arange(len(inputs.canvas), dtype=np.int32)
    decoder = open_decoder(network, len(slots), backend)
    decoder.begin(slots.tolist(), inputs)
    decoder.step(slots, network.config.pixels)
    assert (decoder.positions == network.config.pixels).all()
    return decoder.canvas.copy(), decoder.bits.copy()


def network_bits(
    network: LinearTransformer, canvas: NDArray[np.uint8], inputs: Inputs
) -> NDArray[np.float32]:
    with torch.no_grad():
        bits = network.bits(torch.from_numpy(canvas), torch.from_numpy(inputs.label).long())
    result: NDArray[np.float32] = bits.numpy()
    return result


def state_of(decoder: Decoder) -> list[NDArray[np.float32]]:
    """Give views of all of a backend's state with the slots first, to poison and to compare."""
    if isinstance(decoder, ReferenceDecoder):
        return [tensor.numpy() for state in decoder.states for tensor in state.values()]
    if isinstance(decoder, NativeDecoder):
        return [decoder.states]
    from scanline.model.decoders.triton import TritonDecoder

    assert isinstance(decoder, TritonDecoder)
    return [decoder.kv, decoder.z]  # copies: test_triton_decode.py looks at the device itself


# What the reference is.


@torch.no_grad()
@few_variants
def test_the_reference_is_the_network_and_its_head(config: ModelConfig) -> None:
    """One image drawn by hand with ``network.step`` and ``head.sample``; known pixels stay."""
    network = network_of(config)
    inputs = masked(config, 3, seed=4)
    scatter_seeds(inputs)
    drawn, _ = draw(network, "reference", inputs)
    noise = noises(inputs, config)
    for row in range(3):
        canvas = np.where(inputs.known[row][:, None], inputs.canvas[row], 0)
        label = torch.from_numpy(inputs.label[row : row + 1]).long()
        state = network.initial_state(1)
        for step in range(config.steps):
            pixel, part = divmod(step, config.steps_per_pixel)
            mine = slice(part * config.step_channels, (part + 1) * config.step_channels)
            known = inputs.known[row, pixel]
            if step == 0 and config.start == "given":
                if not known:
                    canvas[0, mine] = config.first_value
                continue
            parameters = network.step(
                torch.from_numpy(canvas[None]), torch.tensor([step]), state, label
            )
            if not known:
                uniforms = noise[row, pixel].reshape(config.steps_per_pixel, -1)[part]
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


@every_layer
def test_unknown_pixels_of_the_upload_leave_no_trace(config: ModelConfig, backend: str) -> None:
    """What stands where the mask says "paint" must not reach the model."""
    network, inputs = network_of(config), masked(config, 3)
    before, bits = draw(network, backend, inputs)
    inputs.canvas[~inputs.known] = 255 - inputs.canvas[~inputs.known]
    after, bits_after = draw(network, backend, inputs)
    assert np.array_equal(before, after)
    assert np.array_equal(bits, bits_after)


@every_layer
@pytest.mark.parametrize("together", [True, False])
def test_what_is_known_is_as_what_was_drawn(
    config: ModelConfig, together: bool, backend: str
) -> None:
    """Absorbing pixels leaves the bits and the state of having drawn them, and the same to come.

    Slots begun one by one too: then a backend may share one image's steps among its threads.
    """
    network, inputs = network_of(config), blank(config, 4)
    lengths = np.array([0, 1, 9, config.pixels], np.int32)
    slots = np.arange(4, dtype=np.int32)
    stepped = open_decoder(network, 4, backend)
    stepped.begin(slots, inputs)
    for slot, length in enumerate(lengths):
        stepped.step(slots[slot : slot + 1], int(length))
    inputs.canvas[:] = stepped.canvas
    inputs.known[:] = np.arange(config.pixels) < lengths[:, None]
    filled = open_decoder(network, 4, backend)
    for some in [slots] if together else np.split(slots, 4):
        filled.begin(some, inputs.rows(some))
    dtype = PRECISION[backend]
    assert np.array_equal(filled.positions, lengths)
    assert np.array_equal(stepped.positions, lengths)
    if backend == "reference":  # where both views leave the same numbers in the same places
        for mine, theirs in zip(state_of(filled), state_of(stepped), strict=True):
            assert_close(torch.from_numpy(mine.copy()), torch.from_numpy(theirs.copy()), dtype)
    assert_close(torch.from_numpy(filled.bits), torch.from_numpy(stepped.bits), dtype)
    for decoder in (stepped, filled):
        for slot, length in enumerate(lengths):
            assert (decoder.bits[slot, length:] == 0).all()
        decoder.step(slots, config.pixels)
    if backend != "reference":
        assert np.array_equal(filled.canvas, stepped.canvas)
    for decoder in (stepped, filled):
        expected = torch.from_numpy(network_bits(network, decoder.canvas, inputs))
        assert_close(torch.from_numpy(decoder.bits), expected, dtype)


@every_kind
def test_slot_minus_one_begins_nothing(config: ModelConfig, backend: str) -> None:
    inputs = blank(config, 3)
    inputs.known[:] = np.arange(config.pixels) < np.array([[5], [4], [9]])
    decoder = open_decoder(network_of(config), 3, backend)
    decoder.begin([-1, 2, -1], inputs)
    assert decoder.positions.tolist() == [0, 0, 4]


@pytest.mark.parametrize("temperature", [-0.5, np.inf, np.nan])
def test_temperatures_out_of_their_range_are_refused(temperature: float, backend: str) -> None:
    decoder, inputs = open_decoder(network_of(GREY), 1, backend), blank(GREY, 1)
    inputs.temperature[0] = temperature
    with pytest.raises(ValueError, match="temperatures must be 0 or more"):
        decoder.begin([0], inputs)


@pytest.mark.parametrize("label", [-2, 2, 100])
def test_labels_the_network_lacks_are_refused(label: int, backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 2, backend)
    inputs = blank(GREY, 2)
    inputs.label[1] = label
    with pytest.raises(ValueError, match="labels must be -1 … 1"):
        decoder.begin([0, 1], inputs)
    assert decoder.inputs.label.tolist() == [-1, -1]
    assert (decoder.canvas == 0).all()


def test_a_network_without_classes_takes_no_label(backend: str) -> None:
    decoder, inputs = open_decoder(network_of(RGB), 1, backend), blank(RGB, 1)
    inputs.label[0] = 0
    with pytest.raises(ValueError, match="labels must be -1"):
        decoder.begin([0], inputs)


def test_each_label_draws_another_image(backend: str) -> None:
    """One seed, four rows: the same without a label twice, another one for each class."""
    network, inputs = network_of(GREY), blank(GREY, 4)
    inputs.seed[:] = inputs.seed[0]
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
    decoder.begin([0, 1], blank(config, 2))
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


@every_layer
@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (7,)], ids=str)
def test_many_small_steps_equal_one_large(
    config: ModelConfig, sizes: tuple[int, ...], backend: str
) -> None:
    network, inputs = network_of(config), masked(config, 3)
    whole, whole_bits = draw(network, backend, inputs)
    decoder = open_decoder(network, 3, backend)
    decoder.begin([0, 1, 2], inputs)
    done = 0
    while done < config.pixels:
        n = sizes[done % len(sizes)]
        decoder.step([0, 1, 2], n)
        done += n
        reached = np.minimum(inputs.prefixes + done, config.pixels)  # begun behind what is known
        assert np.array_equal(decoder.positions, reached)
    assert np.array_equal(decoder.canvas, whole)
    assert np.array_equal(decoder.bits, whole_bits)


@every_layer
def test_other_slots_are_not_read_and_not_written(config: ModelConfig, backend: str) -> None:
    """Slots 1 and 3 work among slots full of NaN, which neither move nor spread."""
    network, inputs = network_of(config), masked(config, 2)
    clean, clean_bits = draw(network, backend, inputs)
    decoder = open_decoder(network, 5, backend)
    others = [0, 2, 4]
    given = decoder.inputs
    for part in (decoder.bits, given.temperature, *state_of(decoder)):
        part[others] = np.nan
    decoder.canvas[others], decoder.positions[others], given.known[others] = 77, 3, True
    parts: list[NDArray[Any]] = [
        decoder.bits, given.seed, given.temperature, decoder.canvas, decoder.positions,
        given.known, given.label, given.top_p, given.guidance, *state_of(decoder),
    ]  # fmt: skip
    before = [part[others].copy() for part in parts]
    decoder.begin([1, -1, 3], inputs.rows([0, 0, 1]))
    decoder.step(np.array([-1, 3, -1, 1, -1], np.int32), 4)
    decoder.step(np.array([1, 3, -1], np.int32), config.pixels)
    for old, new in zip(before, parts, strict=True):
        assert np.array_equal(old, new[others], equal_nan=np.issubdtype(old.dtype, np.floating))
    assert np.array_equal(decoder.canvas[[1, 3]], clean)
    assert np.array_equal(decoder.bits[[1, 3]], clean_bits)
    # And a slot full of NaN is as good as new once it is begun anew.
    decoder.begin([4, 0], inputs)
    decoder.step([0, 4], config.pixels)
    assert np.array_equal(decoder.canvas[[4, 0]], clean)
    assert np.array_equal(decoder.bits[[4, 0]], clean_bits)


def test_slots_that_are_not_there_or_named_twice_are_refused(backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 3, backend)
    decoder.begin([0, 1, 2], blank(GREY, 3))
    for slots in ([0, 1, 0], [3], [-2]):
        inputs = blank(GREY, len(slots))
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.step(slots, 1)
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.begin(slots, inputs)
        with pytest.raises(ValueError, match="slots must be -1 or different numbers"):
            decoder.renew(slots, inputs.particle)
    assert decoder.positions.tolist() == [0, 0, 0]


def test_no_slots_at_all_is_nothing_to_do(backend: str) -> None:
    decoder = open_decoder(network_of(GREY), 2, backend)
    for slots in (np.array([], np.int32), np.array([-1, -1], np.int32)):
        decoder.begin(slots, blank(GREY, len(slots)))
        decoder.step(slots, 3)
    assert decoder.positions.tolist() == [0, 0]
    assert (decoder.canvas == 0).all()


@every_layer
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_bytes_among_others(
    config: ModelConfig, seed: int, backend: str
) -> None:
    """Images that arrive and leave at random, in any slot and order, equal those drawn alone."""
    network, inputs = network_of(config), masked(config, 12, seed=seed)
    generator = np.random.default_rng(seed)
    alone = open_decoder(network, 1, backend)
    expected: list[tuple[NDArray[np.uint8], NDArray[np.float32]]] = []
    for image in range(12):
        alone.begin([0], inputs.rows([image]))
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
            decoder.begin(slots, inputs.rows(images))
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
    prefilled.begin([0], inputs.rows([1]))
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


def test_a_new_image_forgets_the_one_before(backend: str) -> None:
    network, inputs = network_of(GREY), masked(GREY, 2)
    expected, _ = draw(network, backend, inputs)
    decoder = open_decoder(network, 1, backend)
    for row in (0, 1, 0):
        decoder.begin([0], inputs.rows([row]))
        assert decoder.positions.tolist() == [int(inputs.prefixes[row])]
        assert (decoder.bits[0, decoder.positions[0] :] == 0).all()
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
    assert decoder.inputs.seed.shape == decoder.inputs.particle.shape == (3,)
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
    decoder.begin([0], inputs)
    decoder.step([0], GREY.pixels)
    assert np.array_equal(decoder.canvas, expected)


def test_the_reference_runs_in_float64_too() -> None:
    network, inputs = network_of(GREY), blank(GREY, 2)
    decoder = ReferenceDecoder(network, 2, torch.float64)
    decoder.begin([0, 1], inputs)
    decoder.step([0, 1], GREY.pixels)
    assert all(part.dtype == torch.float64 for state in decoder.states for part in state.values())
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
    decoder.begin([0], inputs)
    decoder.step([0], GREY.pixels)
    assert decoder.positions.tolist() == [GREY.pixels]
    assert np.array_equal(decoder.canvas, draw(network, decoder.backend, inputs)[0])


def test_the_few_variants_have_every_start_and_order() -> None:
    assert {c.start for c in FEW.values()} == {"learned", "given"}
    assert {(c.order, c.channels) for c in FEW.values()} >= {
        ("pixel", 1), ("pixel", 3), ("subpixel", 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["native", "triton"])
def test_options_that_a_backend_has_not_heard_of_are_refused(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every option of a config, set to a value of tomorrow, is named; ``auto`` takes the next."""
    if name == "triton":
        pytest.importorskip("triton")
        from scanline.model.decoders.triton import TritonDecoder as Backend
    else:
        from scanline.model.decoders.native import NativeDecoder as Backend  # type: ignore[assignment]
    options = [f.name for f in dataclasses.fields(ModelConfig) if isinstance(f.default, str)]
    assert {"attention", "short_conv", "feature_map", "norm", "start"} <= set(options)
    assert Backend.unsupported(GREY) is None
    for option in options:
        config = dataclasses.replace(GREY)
        object.__setattr__(config, option, "of tomorrow")  # past the config's own check
        reason = Backend.unsupported(config)
        assert reason is not None
        assert option in reason
    network = network_of(GREY)
    monkeypatch.setattr(Backend, "unsupported", classmethod(lambda cls, config: "norm 'rms'"))
    with pytest.raises(BackendError, match=rf"{name}.*norm 'rms'|needs an NVIDIA GPU"):
        open_decoder(network, 1, name)
    if name == "native":
        assert open_decoder(network, 1, "auto").backend == "reference"
        assert "norm 'rms'" in caplog.text


def test_a_new_option_is_refused_by_a_backend_that_was_never_told_of_it() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Tomorrow(ModelConfig):
        gate: bool = False

    plain = Tomorrow(**dataclasses.asdict(GREY) | {"classes": GREY.classes})
    assert NativeDecoder.unsupported(plain) is None
    reason = NativeDecoder.unsupported(dataclasses.replace(plain, gate=True))
    assert reason is not None
    assert "gate True" in reason
