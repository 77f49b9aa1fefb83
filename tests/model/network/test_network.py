"""``forward``, ``prefill`` and ``step`` agree and are causal."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from scanline.model.config import ModelConfig
from scanline.model.network import LinearTransformer
from tests.conftest import assert_close, random_canvas, random_network, tiny_config
from tests.model.network.variants import (
    FEW,
    LAYERS,
    VARIANTS,
    every_layer,
    every_variant,
    every_variant_and_layer,
    few_variants,
    random_labels,
    steps_from,
    tensors,
)


def test_variants_cover_all_options() -> None:
    assert len(VARIANTS) == 88
    for option in ("norm", "activation", "positions", "start", "head", "order", "input"):
        assert len({getattr(config, option) for config in VARIANTS.values()}) == 2
    blocks = {(c.input, c.head, c.norm, c.activation) for c in VARIANTS.values()}
    assert len(blocks) >= 12


@torch.no_grad()
@every_variant_and_layer
def test_parallel_equals_recurrent_equals_prefilled(config: ModelConfig) -> None:
    """Also compare the steps after a prefill."""
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
        known[:, length:] = 255 - known[:, length:]  # prefill must not read these
        prefilled, _ = network.prefill(known, torch.full((3,), length), labels)
        for actual, expected in zip(tensors(prefilled), tensors(state), strict=True):
            assert_close(actual, expected)
    assert_close(torch.cat(rows, 1), parallel)


@torch.no_grad()
@every_layer
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
        for actual, expected in zip(tensors(state), tensors(alone), strict=True):
            assert_close(actual[one], expected)
        assert_close(bits[row, :length], whole[row, :length])
        assert (bits[row, length:] == 0).all()
    for actual, initial in zip(tensors(state), tensors(network.initial_state(5)), strict=True):
        assert torch.equal(actual[0], initial[0])  # a row without pixels
        assert actual.dtype == initial.dtype


@torch.no_grad()
@few_variants
def test_float32_evaluations_agree(config: ModelConfig) -> None:
    network = LinearTransformer(config).eval()  # initial weights, which have a realistic scale
    canvas, labels = random_canvas(config, 2), random_labels(config, 2)
    recurrent, _ = steps_from(network, canvas, network.initial_state(2), 0, labels)
    assert_close(recurrent, network(canvas, labels))


@torch.no_grad()
@every_variant
def test_causality(config: ModelConfig) -> None:
    """The parameters of step s depend on all values before s and on no others."""
    network = random_network(config)
    canvas, labels = random_canvas(config, 1), random_labels(config, 1)
    given = int(config.start == "given")
    before = network(canvas, labels)
    for value in (0, 1, config.values // 2, config.values - 1):
        changed = canvas.clone()
        changed.view(-1)[value] += 100  # wraps around
        after = network(changed, labels)
        first = value // config.step_channels + 1 - given  # first step that may depend on it
        assert_close(after[:, :first], before[:, :first])
        if first < after.shape[1]:
            assert not torch.allclose(after[:, first:], before[:, first:], rtol=1e-6)
            if config.input == "previous":
                assert not torch.allclose(after[:, first], before[:, first], rtol=1e-6)


@torch.no_grad()
def test_later_channels_depend_on_earlier_ones() -> None:
    """With one step per pixel, the cost of red ignores green, and that of blue uses both."""
    config = tiny_config(channels=3, head="logistic_mixture")
    network = random_network(config)
    parameters = torch.randn(1, config.head_outputs, dtype=torch.float64)

    def blue_given(red: int, green: int) -> Tensor:
        values = torch.tensor([[red, green, b] for b in range(256)])
        joint = torch.exp2(-network.head.bits(parameters.expand(256, -1), values))
        return joint / joint.sum()

    base = blue_given(100, 50)
    assert (blue_given(101, 50) - base).abs().max() > 1e-9
    assert (blue_given(100, 51) - base).abs().max() > 1e-9
    # Changing blue does not change how red and green are drawn from the same uniforms.
    uniforms = torch.rand(1, config.step_draws)
    last = uniforms.clone()
    last[:, -1] = 1 - last[:, -1]
    one = network.head.sample(parameters, uniforms, torch.ones(1))
    two = network.head.sample(parameters, last, torch.ones(1))
    assert torch.equal(one[:, :2], two[:, :2])
    assert one[0, 2] != two[0, 2]


@torch.no_grad()
def test_labels_change_the_result() -> None:
    config = tiny_config(classes=("cat", "dog", "owl"))
    network = random_network(config)
    canvas = random_canvas(config, 1).expand(4, -1, -1)
    by_label = network(canvas, torch.arange(4))
    for a, b in itertools.combinations(range(4), 2):
        assert not torch.allclose(by_label[a], by_label[b])
    assert_close(network(canvas, None), by_label[3:].expand(4, -1, -1))
    assert_close(network.bits(canvas[:1]), network.bits(canvas[:1], torch.tensor([3])))


@torch.no_grad()
def test_labels_without_classes_are_rejected() -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="without classes and takes no labels"):
        LinearTransformer(config)(random_canvas(config, 1), torch.zeros(1, dtype=torch.long))


@torch.no_grad()
@every_variant
def test_bits_sum_the_heads_bits_per_pixel(config: ModelConfig) -> None:
    network = random_network(config)
    canvas, labels = random_canvas(config, 2), random_labels(config, 2)
    bits = network.bits(canvas, labels)
    assert bits.shape == (2, config.pixels)
    parameters = network(canvas, labels)
    given = int(config.start == "given")
    by_hand = torch.zeros(2, config.pixels, dtype=torch.float64)
    for step in range(given, config.steps):
        pixel, part = divmod(step, config.steps_per_pixel)
        channels = slice(part * config.step_channels, (part + 1) * config.step_channels)
        by_hand[:, pixel] += network.head.bits(
            parameters[:, step - given], canvas[:, pixel, channels]
        )
    assert_close(bits, by_hand)
    _, prefilled = network.prefill(canvas, torch.full((2,), config.pixels), labels)
    assert_close(prefilled, bits)


@torch.no_grad()
@pytest.mark.parametrize("channels", [1, 3])
def test_probabilities_of_all_images_sum_to_one(channels: int) -> None:
    """The likelihoods of all 2-pixel images with the possible values sum to 1."""
    config = ModelConfig(
        height=1, width=2, channels=channels, order="subpixel", head="categorical",
        positions="sinusoidal", n_layers=1, n_heads=1, d_model=8, d_ff=8,
    )  # fmt: skip
    network = random_network(config)
    # Only 3 values are possible, so there are 3^values images.
    network.head.predictor.bias[3:] = -1e4
    values = torch.tensor(list(itertools.product(range(3), repeat=config.values)))
    canvas = values.view(-1, 2, channels).to(torch.uint8)
    total = torch.exp2(-network.bits(canvas).sum(1)).sum()
    assert_close(total, torch.tensor(1.0, dtype=torch.float64))


@torch.no_grad()
def test_rows_are_independent() -> None:
    config = tiny_config(classes=("a", "b"))
    network = random_network(config)
    canvas, labels = random_canvas(config, 4), torch.tensor([0, 1, 2, 0])
    together = network(canvas, labels)
    for row in range(4):
        assert_close(network(canvas[row : row + 1], labels[row : row + 1])[0], together[row])


def test_every_parameter_has_a_gradient() -> None:
    """A parameter without a gradient would be unused."""
    for name, config in (FEW | LAYERS).items():
        network = random_network(config)
        labels = torch.tensor([0, 1, 2]) if config.classes else None
        network.bits(random_canvas(config, 3), labels).sum().backward()  # type: ignore[no-untyped-call]
        for parameter_name, parameter in network.named_parameters():
            assert parameter.grad is not None, (name, parameter_name)
            assert parameter.grad.abs().max() > 0, (name, parameter_name)
