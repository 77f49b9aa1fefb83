"""Sampling of the heads by inverse CDF, with the probabilities of the likelihood."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from scanline.kernels.constants import MIXTURES
from scanline.model.heads import Head, apply_top_p
from tests.conftest import tiny_config
from tests.model.heads.fixtures import (
    bin_probability,
    distribution,
    make_head,
    marginal,
    random_parameters,
)

KINDS = [("logistic_mixture", 1), ("logistic_mixture", 3), ("categorical", 1)]


def mixture_parameters(
    channels: int,
    weights: list[float],
    means: list[list[float]],
    log_scales: list[list[float]],
    coefficients: list[list[float]] | None = None,
) -> Tensor:
    """Return the parameters of one mixture; components that are not given have no weight."""
    pairs = channels * (channels - 1) // 2
    rows = [weights, *means, *log_scales, *(coefficients or [[0.0]] * pairs)]
    parameters = torch.zeros(1, len(rows), MIXTURES, dtype=torch.float64)
    parameters[:, 0] = -1e4
    for index, row in enumerate(rows):
        parameters[0, index, : len(row)] = torch.tensor(row, dtype=torch.float64)
    return parameters.flatten(1)


def draw(head: Head, parameters: Tensor, uniforms: Tensor, temperature: float = 1.0) -> Tensor:
    rows = uniforms.shape[0]
    return head.sample(parameters.expand(rows, -1), uniforms, torch.full((rows,), temperature))


def chi_square_passes(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Pearson's test at five standard deviations, with rare cells merged."""
    expected = probabilities / probabilities.sum() * counts.sum()
    order = np.argsort(expected)
    rare = np.cumsum(expected[order]) < 20
    few = order[rare]
    cells = np.append(np.delete(counts, few), counts[few].sum())
    wanted = np.append(np.delete(expected, few), expected[few].sum())
    kept = wanted > 1e-9
    assert counts[expected <= 1e-300].sum() == 0  # impossible values were not drawn
    statistic = ((cells[kept] - wanted[kept]) ** 2 / wanted[kept]).sum()
    freedom = kept.sum() - 1
    return bool(statistic < freedom + 5 * math.sqrt(2 * freedom) + 10)


@pytest.mark.parametrize("kind", ["logistic_mixture", "categorical"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grey_samples_follow_the_likelihood(kind: str, dtype: torch.dtype) -> None:
    head = make_head(kind, 1)
    config = tiny_config(head=kind)
    parameters = random_parameters(config.head_outputs, 1, seed=3)
    if kind == "logistic_mixture":
        parameters[:, 20:] -= 2
    uniforms = torch.from_numpy(np.random.default_rng(0).random((60_000, config.step_draws)))
    values = draw(head.to(dtype), parameters.to(dtype), uniforms.clamp(1e-12, 1 - 1e-12))
    counts = np.bincount(values[:, 0].numpy(), minlength=256)
    expected = distribution(head.double(), parameters, [])
    assert chi_square_passes(counts, expected.detach().numpy())
    other = random_parameters(config.head_outputs, 1, seed=4)
    wrong = distribution(head, other, []).detach().numpy()
    assert not chi_square_passes(counts, wrong + 1e-12)  # the test has power


def test_rgb_mixture_samples_follow_the_likelihood_channel_by_channel() -> None:
    """Test red alone, then green and blue given a frequent red and green."""
    head = make_head("logistic_mixture", 3)
    parameters = mixture_parameters(
        3,
        weights=[0.3, 0.0, -0.4],
        means=[[-0.5, 0.2, 1.0], [0.1, -0.2, 0.0], [0.0, 0.3, -0.4]],
        log_scales=[[-4.5, -4.0, -3.0], [-3.5, -4.2, -3.9], [-3.0, -3.3, -2.0]],
        coefficients=[[1.0, -2.0, 0.4], [-0.3, 0.8, 0.2], [0.5, 0.1, -1.5]],
    )
    uniforms = torch.from_numpy(np.random.default_rng(1).random((400_000, 4)))
    values = draw(head, parameters, uniforms).numpy().astype(np.int64)
    earlier: list[int] = []
    for channel in range(3):
        counts = np.bincount(values[:, channel], minlength=256)
        assert counts.sum() > 1000
        assert chi_square_passes(counts, marginal(parameters, 3, earlier).numpy())
        likeliest = int(counts.argmax())
        earlier.append(likeliest)
        values = values[values[:, channel] == likeliest]


GRID = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000


@pytest.mark.parametrize("mean", [-0.97, 0.1, 1.02])
@pytest.mark.parametrize("log_scale", [-5.0, -3.0, -0.5])
def test_logistic_inverse_cdf_boundaries(mean: float, log_scale: float) -> None:
    """A fine grid of u falls into 256 ordered intervals, as long as the probabilities."""
    head = make_head("logistic_mixture", 1)
    parameters = mixture_parameters(1, [0.0], [[mean]], [[log_scale]])
    uniforms = torch.stack([torch.full_like(GRID, 0.5), GRID], 1)
    values = draw(head, parameters, uniforms)[:, 0].long()
    assert (values.diff() >= 0).all()
    lengths = torch.bincount(values, minlength=256) / len(GRID)
    expected = torch.tensor([bin_probability(x, mean, math.exp(log_scale)) for x in range(256)])
    assert (lengths - expected).abs().max() <= 1.01 / len(GRID)


def test_mixture_component_boundaries() -> None:
    head = make_head("logistic_mixture", 1)
    weights = [0.5, -1.0, 0.2, -0.7]
    means = [-0.9, -0.3, 0.3, 0.9]
    parameters = mixture_parameters(1, weights, [means], [[-7.0] * 4])
    values = draw(head, parameters, torch.stack([GRID, torch.full_like(GRID, 0.5)], 1))[:, 0]
    drawn = [round((mean + 1) * 127.5) for mean in means]
    assert set(values.tolist()) == set(drawn)
    shares = torch.softmax(torch.tensor(weights), 0)
    for value, share in zip(drawn, shares.tolist(), strict=True):
        assert abs(float((values == value).double().mean()) - share) <= 1.01 / len(GRID) + 1e-7


def test_categorical_inverse_cdf_boundaries() -> None:
    head = make_head("categorical", 1)
    parameters = random_parameters(256, 1)
    parameters[:, 100:200] = -1e9  # impossible values have empty intervals
    values = draw(head, parameters, GRID.unsqueeze(1))[:, 0].long()
    assert (values.diff() >= 0).all()
    lengths = torch.bincount(values, minlength=256) / len(GRID)
    expected = torch.softmax(parameters[0], 0)
    assert (lengths - expected).abs().max() <= 1.01 / len(GRID)
    assert lengths[100:200].sum() == 0


@pytest.mark.parametrize(("kind", "channels"), KINDS)
def test_temperature_zero_takes_the_most_likely_value(kind: str, channels: int) -> None:
    """Compare with a search, channel after channel."""
    head = make_head(kind, channels)
    config = tiny_config(head=kind, channels=channels)
    rows = random_parameters(config.head_outputs, 12, seed=9)
    if kind == "logistic_mixture":
        rows[:, MIXTURES * (1 + channels) : MIXTURES * (1 + 2 * channels)] -= 2
    else:
        rows *= 2
    noise = torch.rand(12, config.step_draws)
    drawn = head.sample(rows, noise, torch.zeros(12))
    again = head.sample(rows, 1 - noise, torch.zeros(12))
    assert torch.equal(drawn, again)  # independent of the noise
    for parameters, values in zip(rows.unsqueeze(1), drawn.tolist(), strict=True):
        earlier: list[int] = []
        for _ in range(channels):
            mixture = kind == "logistic_mixture"
            likely = marginal(parameters, channels, earlier) if mixture else parameters[0]
            earlier.append(int(likely.argmax()))
        assert values == earlier


@pytest.mark.parametrize(("kind", "channels"), KINDS)
def test_lower_temperature_is_sharper(kind: str, channels: int) -> None:
    """Logistics with one mean spread less; the mean cost of a categorical falls."""
    head = make_head(kind, channels)
    config = tiny_config(head=kind, channels=channels)
    parameters = random_parameters(config.head_outputs, 1, seed=12)
    if kind == "logistic_mixture":
        parameters[:, MIXTURES : MIXTURES * (1 + channels)] = 0
        parameters[:, MIXTURES * (1 + channels) : MIXTURES * (1 + 2 * channels)] -= 3
    uniforms = torch.from_numpy(np.random.default_rng(3).random((4000, config.step_draws)))
    looseness = []
    for temperature in (0.05, 0.3, 1.0, 2.0):
        values = draw(head, parameters, uniforms, temperature)
        cost = head.bits(parameters.expand(4000, -1), values).mean().detach()
        away = (values.double() - 127.5).abs().mean()
        looseness.append(float(away if kind == "logistic_mixture" else cost))
    assert looseness == sorted(looseness)
    assert looseness[2] - looseness[0] > 0.2


def test_categorical_temperature_divides_the_logits() -> None:
    head = make_head("categorical", 1)
    parameters = random_parameters(256, 1)
    for temperature in (0.3, 1.7):
        cooled = draw(head, parameters / temperature, GRID[::5].unsqueeze(1))
        values = draw(head, parameters, GRID[::5].unsqueeze(1), temperature)
        # float32: a uniform at a boundary may fall on the other side
        assert (cooled != values).sum() <= 2


def test_rows_have_their_own_temperature() -> None:
    head = make_head("logistic_mixture", 3)
    rows = random_parameters(100, 5)
    uniforms, temperature = torch.rand(5, 4), torch.tensor([0.0, 0.2, 1.0, 3.0, 0.0])
    together = head.sample(rows, uniforms, temperature)
    for i in range(5):
        one = slice(i, i + 1)
        assert torch.equal(head.sample(rows[one], uniforms[one], temperature[one]), together[one])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 100.0])
@pytest.mark.parametrize(("kind", "channels"), KINDS)
def test_extreme_uniforms_stay_in_range(
    kind: str, channels: int, temperature: float, dtype: torch.dtype
) -> None:
    """The ends of (0, 1) give the ends of the distribution, without NaN or wrap-around."""
    head = make_head(kind, channels).to(dtype)
    config = tiny_config(head=kind, channels=channels)
    least, most = 2.0**-24, 1 - 2.0**-24  # the range of model/noise.py
    parameters = 4 * random_parameters(config.head_outputs, 1).to(dtype)
    uniforms = torch.tensor([[least], [most]]).expand(2, config.step_draws)
    values = draw(head, parameters, uniforms, temperature)
    assert values.shape == (2, channels)
    assert values.dtype == torch.uint8
    assert head.bits(parameters.expand(2, -1), values).isfinite().all()
    if temperature == 100.0:
        expected = [[0] * channels, [255] * channels]
        assert (values[0] < values[1]).all()
        assert values.tolist() == expected


def test_largest_uniform_never_draws_an_impossible_value() -> None:
    """Rounding of the cumulative sum must not push u ≈ 1 past the last possible value."""
    head = make_head("categorical", 1).float()
    most = torch.tensor([[1 - 2.0**-24]])
    for seed in range(300):
        parameters = random_parameters(256, 1, seed).float()
        parameters[:, 200:] = -math.inf
        assert int(draw(head, parameters, most)) < 200


def test_top_p_keeps_the_lower_of_equal_values() -> None:
    kept = apply_top_p(torch.ones(2, 4), torch.tensor([0.5, 0.6]))
    assert kept.tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_top_p_of_one_keeps_every_value() -> None:
    """Even values whose predecessors sum to 1 in float32."""
    weights = torch.tensor([[1e-10, 1.0, 1e-20]])
    assert torch.equal(apply_top_p(weights, torch.ones(1)), weights)


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 0.03])
@pytest.mark.parametrize(("kind", "channels"), KINDS)
def test_log_probs_are_finite_at_tiny_temperatures(
    kind: str, channels: int, temperature: float
) -> None:
    """Guidance subtracts them, so they must not be infinite."""
    head, config = make_head(kind, channels).float(), tiny_config(head=kind, channels=channels)
    parameters = 4 * random_parameters(config.head_outputs, 3).float()
    values = torch.full((3, channels), 100)
    for channel in range(channels):
        logs = head.log_probs(parameters, channel, values, torch.full((3,), temperature))
        assert logs.isfinite().all()
        assert logs.exp().sum(1).tolist() == pytest.approx([1, 1, 1], rel=1e-3)


def test_low_temperature_scale_is_below_the_learned_minimum() -> None:
    head = make_head("logistic_mixture", 1)
    parameters = mixture_parameters(1, [0.0], [[100 / 127.5 - 1]], [[-7.0]])
    nothing = torch.zeros(1, 1, dtype=torch.long)
    shares = [
        float(head.log_probs(parameters, 0, nothing, torch.tensor([temperature]))[0, 100].exp())
        for temperature in (1.0, 0.1)
    ]
    assert shares[0] == pytest.approx(math.tanh(math.exp(7) / 255 / 2), abs=1e-4)
    assert shares[1] > 1 - 1e-6
