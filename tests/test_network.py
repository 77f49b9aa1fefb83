"""One network, three views that agree (parallel, prefilled, recurrent) and see only the past."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from scanline.model.config import NEIGHBOURS, ModelConfig
from scanline.model.inputs import NeighbourhoodInput, neighbour_index, sinusoidal_code
from scanline.model.layers.layer import State
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config


def variants() -> dict[str, ModelConfig]:
    """Give every valid combination of the options that meet in one place, and of the rest in turn.

    What feeds the first layer (input, encoding, order, positions, start, channels, classes) and
    the head are crossed in full; norm and activation, which live in the block, run along.
    """
    found: dict[str, ModelConfig] = {}
    blocks = itertools.cycle(itertools.product(("pre", "post"), ("gelu", "relu")))
    for source, order, channels, head, positions, start, classes in itertools.product(
        ("previous", "table", "linear", "table+linear"),
        ("subpixel", "pixel"),
        (1, 3),
        ("categorical", "logistic_mixture"),
        ("learned", "sinusoidal"),
        ("learned", "given"),
        ((), ("cat", "dog")),
    ):
        norm, activation = next(blocks)
        fields: dict[str, Any] = {"input": "previous"}
        if source != "previous":
            fields = {"input": "neighbourhood", "encoding": source}
        try:
            config = tiny_config(
                order=order, channels=channels, head=head, positions=positions, start=start,
                classes=classes, norm=norm, activation=activation, **fields,
            )  # fmt: skip
        except ValueError:
            continue
        name = f"{source}-{order}-{channels}-{head}-{positions}-{start}-{norm}-{activation}"
        found[f"{name}-{'classes' if classes else 'plain'}"] = config
    return found


VARIANTS = variants()
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
FEW = {name: config for i, (name, config) in enumerate(VARIANTS.items()) if i % 9 == 0}
few_variants = pytest.mark.parametrize("config", FEW.values(), ids=FEW.keys())


def random_labels(config: ModelConfig, rows: int) -> Tensor | None:
    """Give a class or "no label" to each row in turn, None where there are no classes."""
    if not config.classes:
        return None
    return torch.arange(rows) % (len(config.classes) + 1) - 1


def steps_from(
    network: LinearTransformer,
    canvas: Tensor,
    state: list[State],
    start: int,
    labels: Tensor | None,
    end: int | None = None,
) -> tuple[Tensor, list[State]]:
    """Run the recurrent view from step ``start`` to before ``end``, or the end."""
    given = int(network.config.start == "given")
    rows = [
        network.step(canvas, torch.full((canvas.shape[0],), step), state, labels)
        for step in range(max(start, given), network.config.steps if end is None else end)
    ]
    if not rows:
        return torch.empty(canvas.shape[0], 0, network.config.head_outputs), state
    return torch.stack(rows, 1), state


def tensors(states: list[State]) -> list[Tensor]:
    return [tensor for state in states for tensor in state.values()]


def test_the_variants_are_many() -> None:
    assert len(VARIANTS) == 144
    for option in ("norm", "activation", "positions", "start", "head", "order", "input"):
        assert len({getattr(config, option) for config in VARIANTS.values()}) == 2
    blocks = {(c.input, c.head, c.norm, c.activation) for c in VARIANTS.values()}
    assert len(blocks) >= 12


@torch.no_grad()
@every_variant
def test_parallel_equals_recurrent_equals_prefilled(config: ModelConfig) -> None:
    """A step is a function of the state: prefilled to the stepped one, it goes on as that does."""
    network = random_network(config)
    canvas, labels = random_canvas(config, 3), random_labels(config, 3)
    parallel = network(canvas, labels)
    given = int(config.start == "given")
    assert parallel.shape == (3, config.steps - given, config.head_outputs)
    state, done, rows = network.initial_state(3), 0, []
    for length in (1, 7, config.pixels):
        until = length * config.steps_per_pixel
        part, state = steps_from(network, canvas, state, done, labels, until)
        rows.append(part)
        done = until
        known = canvas.clone()
        known[:, length:] = 255 - known[:, length:]  # prefill must not look there
        prefilled, _ = network.prefill(known, torch.full((3,), length), labels)
        for mine, theirs in zip(tensors(prefilled), tensors(state), strict=True):
            assert_close(mine, theirs)
    assert_close(torch.cat(rows, 1), parallel)


@torch.no_grad()
@few_variants
def test_a_prefilled_state_goes_on(config: ModelConfig) -> None:
    network = random_network(config)
    canvas, labels = random_canvas(config, 3), random_labels(config, 3)
    parallel = network(canvas, labels)
    done = 7 * config.steps_per_pixel
    state, _ = network.prefill(canvas, torch.full((3,), 7), labels)
    rest, _ = steps_from(network, canvas, state, done, labels)
    assert_close(rest, parallel[:, done - int(config.start == "given") :])


@torch.no_grad()
@few_variants
def test_rows_prefill_to_different_lengths(config: ModelConfig) -> None:
    network = random_network(config)
    lengths = torch.tensor([0, 1, 13, config.pixels, 6])
    canvas, labels = random_canvas(config, 5), random_labels(config, 5)
    state, bits = network.prefill(canvas, lengths, labels)
    whole = network.bits(canvas, labels)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        label = None if labels is None else labels[one]
        alone, _ = network.prefill(canvas[one], lengths[one], label)
        for mine, theirs in zip(tensors(state), tensors(alone), strict=True):
            assert_close(mine[one], theirs)
        assert_close(bits[row, :length], whole[row, :length])
        assert (bits[row, length:] == 0).all()
    assert all((part[0] == 0).all() for part in tensors(state))  # a row of no pixels has seen none


@torch.no_grad()
@few_variants
def test_prefill_of_nothing_is_the_empty_state(config: ModelConfig) -> None:
    network = random_network(config)
    state, bits = network.prefill(
        random_canvas(config, 2), torch.zeros(2, dtype=torch.long), random_labels(config, 2)
    )
    for mine, empty in zip(tensors(state), tensors(network.initial_state(2)), strict=True):
        assert torch.equal(mine, empty)
        assert mine.dtype == torch.float64
    assert bits.shape == (2, config.pixels)
    assert (bits == 0).all()


@torch.no_grad()
@few_variants
def test_float32_views_agree(config: ModelConfig) -> None:
    network = LinearTransformer(config).eval()  # as initialised, the scale of real networks
    canvas, labels = random_canvas(config, 2), random_labels(config, 2)
    recurrent, _ = steps_from(network, canvas, network.initial_state(2), 0, labels)
    assert_close(recurrent, network(canvas, labels))


@torch.no_grad()
@every_variant
def test_a_value_changes_later_steps_only(config: ModelConfig) -> None:
    """The parameters of step s depend on the values before s: on those all, and on no other."""
    network = random_network(config)
    canvas, labels = random_canvas(config, 1), random_labels(config, 1)
    given = int(config.start == "given")
    before = network(canvas, labels)
    for value in (0, 1, config.values // 2, config.values - 1):
        changed = canvas.clone()
        changed.view(-1)[value] += 100  # uint8 wraps
        after = network(changed, labels)
        first = value // config.step_channels + 1 - given  # row of the first step that may see it
        assert_close(after[:, :first], before[:, :first])
        if first < after.shape[1]:
            assert not torch.allclose(after[:, first:], before[:, first:], rtol=1e-6)
            if config.input == "previous":
                assert not torch.allclose(after[:, first], before[:, first], rtol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("head", ["categorical", "logistic_mixture"])
def test_within_a_pixel_later_channels_see_earlier_ones(head: str) -> None:
    """Drawn a pixel a step: red's share of the cost is blind to green, blue's sees both."""
    config = tiny_config(channels=3, head=head)
    network = random_network(config)
    parameters = torch.randn(1, config.head_outputs, dtype=torch.float64)

    def blue_given(red: int, green: int) -> Tensor:
        values = torch.tensor([[red, green, b] for b in range(256)])
        joint = torch.exp2(-network.head.bits(parameters.expand(256, -1), values))
        return joint / joint.sum()

    base = blue_given(100, 50)
    assert (blue_given(101, 50) - base).abs().max() > 1e-9
    assert (blue_given(100, 51) - base).abs().max() > 1e-9
    # Changing blue changes nothing in how red and green are drawn: the same uniforms, same values.
    uniforms = torch.rand(1, config.step_draws)
    last = uniforms.clone()
    last[:, -1] = 1 - last[:, -1]
    one = network.head.sample(parameters, uniforms, torch.ones(1))
    two = network.head.sample(parameters, last, torch.ones(1))
    assert torch.equal(one[:, :2], two[:, :2])
    assert one[0, 2] != two[0, 2]


@torch.no_grad()
def test_labels_matter_and_none_is_the_extra_one() -> None:
    config = tiny_config(classes=("cat", "dog", "owl"))
    network = random_network(config)
    canvas = random_canvas(config, 1).expand(4, -1, -1)
    by_label = network(canvas, torch.arange(4))
    for a, b in itertools.combinations(range(4), 2):
        assert not torch.allclose(by_label[a], by_label[b])
    assert_close(network(canvas, None), by_label[3:].expand(4, -1, -1))
    assert_close(network.bits(canvas[:1]), network.bits(canvas[:1], torch.tensor([3])))


@torch.no_grad()
def test_labels_without_classes_are_refused() -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="without classes and takes no labels"):
        LinearTransformer(config)(random_canvas(config, 1), torch.zeros(1, dtype=torch.long))


@torch.no_grad()
@every_variant
def test_bits_are_the_heads_summed_over_each_pixel(config: ModelConfig) -> None:
    network = random_network(config)
    canvas, labels = random_canvas(config, 2), random_labels(config, 2)
    bits = network.bits(canvas, labels)
    assert bits.shape == (2, config.pixels)
    parameters = network(canvas, labels)
    given = int(config.start == "given")
    by_hand = torch.zeros(2, config.pixels, dtype=torch.float64)
    for step in range(given, config.steps):
        pixel, part = divmod(step, config.steps_per_pixel)
        mine = slice(part * config.step_channels, (part + 1) * config.step_channels)
        by_hand[:, pixel] += network.head.bits(parameters[:, step - given], canvas[:, pixel, mine])
    assert_close(bits, by_hand)
    _, prefilled = network.prefill(canvas, torch.full((2,), config.pixels), labels)
    assert_close(prefilled, bits)


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 3])
def test_probabilities_of_all_images_sum_to_one(channels: int) -> None:
    """Exact likelihood, end to end: all 2-pixel images over values that carry everything."""
    config = ModelConfig(
        height=1, width=2, channels=channels, order="subpixel", head="categorical", n_layers=1,
        n_heads=1, d_model=8, d_ff=8,
    )  # fmt: skip
    network = random_network(config)
    # Only 3 values can occur, so that 3^values images are all of them.
    network.head.predictor.bias[3:] = -1e4
    values = torch.tensor(list(itertools.product(range(3), repeat=config.values)))
    canvas = values.view(-1, 2, channels).to(torch.uint8)
    total = torch.exp2(-network.bits(canvas).sum(1)).sum()
    assert_close(total, torch.tensor(1.0, dtype=torch.float64))


@torch.no_grad()
def test_rows_do_not_see_each_other() -> None:
    config = tiny_config(classes=("a", "b"))
    network = random_network(config)
    canvas, labels = random_canvas(config, 4), torch.tensor([0, 1, 2, 0])
    together = network(canvas, labels)
    for row in range(4):
        assert_close(network(canvas[row : row + 1], labels[row : row + 1])[0], together[row])


def test_every_parameter_learns() -> None:
    """A parameter without a gradient would be one that no data reaches."""
    for name, config in FEW.items():
        network = random_network(config)
        labels = torch.tensor([0, 1, 2]) if config.classes else None
        network.bits(random_canvas(config, 3), labels).sum().backward()  # type: ignore[no-untyped-call]
        for parameter_name, parameter in network.named_parameters():
            assert parameter.grad is not None, (name, parameter_name)
            assert parameter.grad.abs().max() > 0, (name, parameter_name)


# What the parts compute: the views share their code, so that their agreement says nothing of it.


@torch.no_grad()
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_block_is_the_plain_computation(norm: str, activation: str) -> None:
    config = tiny_config(norm=norm, activation=activation)
    block = random_network(config).blocks[0]
    w = {name.removeprefix("attention."): p.detach() for name, p in block.named_parameters()}
    x = torch.randn(1, 6, 16, dtype=torch.float64)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def normed(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(x: Tensor) -> Tensor:
        q, k, v = (linear(x, name)[0].view(6, 2, 8) for name in ("query", "key", "value"))
        heads = []
        for h in range(2):
            phi_q, phi_k = (torch.where(y > 0, y + 1, y.exp())[:, h] for y in (q, k))
            scores = (phi_q @ phi_k.T).tril()
            heads.append(scores @ v[:, h] / (scores.sum(-1, keepdim=True) + 1e-6))
        return linear(torch.cat(heads, -1), "out").unsqueeze(0)

    def feed_forward(x: Tensor) -> Tensor:
        y = linear(x, "linear1")
        gelu = 0.5 * y * (1 + torch.erf(y / 2**0.5))
        return linear(gelu if activation == "gelu" else y.clamp(min=0), "linear2")

    if norm == "pre":
        middle = x + attention(normed(x, "norm1"))
        expected = middle + feed_forward(normed(middle, "norm2"))
    else:
        middle = normed(x + attention(x), "norm1")
        expected = normed(middle + feed_forward(middle), "norm2")
    assert_close(block(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("encoding", ["table", "linear", "table+linear"])
@pytest.mark.parametrize("order", ["subpixel", "pixel"])
def test_the_first_layer_sees_places_position_and_label(order: str, encoding: str) -> None:
    config = tiny_config(channels=3, order=order, encoding=encoding, classes=("a", "b"))
    network = random_network(config)
    w = dict(network.named_parameters())
    layer = network.input
    assert isinstance(layer, NeighbourhoodInput)
    canvas = random_canvas(config, 1)
    steps = torch.arange(config.steps).unsqueeze(0)
    got = network.embed(canvas, steps, torch.tensor([1]))[0]
    ids = layer.place_ids(canvas, steps)[0]  # checked below
    for step in range(config.steps):
        pixel, part = divmod(step, config.steps_per_pixel)
        expected = w["positions.row"][pixel // 4] + w["positions.column"][pixel % 4]
        expected = expected + w["label_embedding.weight"][1]
        if order == "subpixel":
            expected = expected + w["positions.channel"][part]
        for place, value in enumerate(ids[step].tolist()):
            if "table" in encoding:
                expected = expected + w["input.tables"][257 * place + value]
            if "linear" in encoding:
                matrix = w["input.linear.weight"]
                intensity = 0.0 if value == 256 else value / 127.5 - 1
                expected = expected + matrix[:, place] * intensity
                expected = expected + matrix[:, ids.shape[1] + place] * (value == 256)
        if "linear" in encoding:
            expected = expected + w["input.linear.bias"]
        assert_close(got[step], expected)


# What a step sees.


def test_neighbours_are_where_they_should_be() -> None:
    height, width = 5, 6
    index = neighbour_index(height, width)
    assert index.shape == (30, 17)
    for pixel in range(30):
        row, column = divmod(pixel, width)
        for place, (down, right) in enumerate(NEIGHBOURS):
            y, x = row + down, column + right
            inside = y >= 0 and 0 <= x < width
            assert index[pixel, place] == (y * width + x if inside else 30)
        assert all(other < pixel or other == 30 for other in index[pixel].tolist())


@pytest.mark.parametrize("order", ["subpixel", "pixel"])
def test_places_hold_the_neighbours_values_and_the_pixels_own(order: str) -> None:
    config = tiny_config(channels=3, order=order, encoding="linear")
    layer = NeighbourhoodInput(config)
    canvas = random_canvas(config, 2)
    ids = layer.place_ids(canvas, torch.arange(config.steps).expand(2, -1))
    index = neighbour_index(config.height, config.width)
    for step in range(config.steps):
        pixel, part = divmod(step, config.steps_per_pixel)
        expected: list[int] = []
        for other in index[pixel].tolist():
            outside = other == config.pixels
            expected += [256] * 3 if outside else canvas[1, other].tolist()
        if order == "subpixel":
            red, green, _ = canvas[1, pixel].tolist()
            expected += [red if part > 0 else 256, green if part > 1 else 256]
        assert ids[1, step].tolist() == expected


def test_the_sinusoidal_code_is_vaswanis() -> None:
    code = sinusoidal_code(torch.arange(50), 6)
    for position, i in itertools.product(range(50), range(3)):
        angle = torch.tensor(position / 10_000 ** (2 * i / 6))
        assert_close(code[position, 2 * i], angle.sin())
        assert_close(code[position, 2 * i + 1], angle.cos())
