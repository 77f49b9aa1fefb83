"""From the last layer's features to values: exact likelihood, and sampling by inverse CDF.

Two kinds, each over the channels that one step decides, drawn in turn:

* ``categorical``: 256 logits a channel; a later channel's logits add a table row for the value of
  each earlier channel.
* ``logistic_mixture``: ten discretised logistics (Salimans et al., *PixelCNN++*, ICLR 2017,
  eq. 1-3). A component is one mean and log-scale a channel; a later channel's mean moves linearly
  with the values of the earlier ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.constants import MIN_LOG_PROB, MIN_LOG_SCALE, MIN_WARM_LOG_SCALE, MIXTURES
from scanline.kernels.native.training import nll
from scanline.kernels.ops.linear import full_precision_linear
from scanline.model.config import VALUES, ModelConfig

_LN2 = math.log(2.0)


class Mixture(NamedTuple):
    """Logistics over C channels in [-1, 1]: ``weights: [..., M]``, the rest ``[..., C, M]``.

    ``coefficients: [..., C (C - 1) / 2, M]``, pairs in the order (1, 0), (2, 0), (2, 1).
    """

    weights: Tensor
    means: Tensor
    log_scales: Tensor
    coefficients: Tensor


def split_mixture(parameters: Tensor, channels: int) -> Mixture:
    """Name the parts of the head's output ``[..., M (1 + 2 C + C (C - 1) / 2)]``."""
    pairs = channels * (channels - 1) // 2
    parts = parameters.unflatten(-1, (-1, MIXTURES))
    weights, means, log_scales, coefficients = parts.split([1, channels, channels, pairs], -2)
    return Mixture(
        weights.squeeze(-2),
        means,
        log_scales.clamp(min=MIN_LOG_SCALE),
        coefficients.tanh(),
    )


def channel_means(mixture: Mixture, channel: int, earlier: Tensor) -> Tensor:
    """Give a channel's means ``[..., M]`` once the earlier channels' values are known.

    ``earlier: [..., C]`` holds values in [-1, 1]; only the first ``channel`` of them are read.
    """
    means = mixture.means[..., channel, :]
    first_pair = channel * (channel - 1) // 2
    for other in range(channel):
        coefficient = mixture.coefficients[..., first_pair + other, :]
        means = means + coefficient * earlier[..., other].unsqueeze(-1)
    return means


def logistic_log_prob(values: Tensor, means: Tensor, log_scales: Tensor) -> Tensor:
    """Give log P(value) of discretised logistics; values in [-1, 1], shapes broadcast together.

    The bin of a value is 2/255 wide; the first and the last reach to infinity. With a the distance
    of a bin's middle from the mean and h half its width, both in scales, its mass is
    σ(a + h) - σ(a - h) = 2 sinh(h) e^-a / ((1 + e^(h-a)) (1 + e^(-h-a))), where nothing cancels.
    """
    centred = values - means
    inverse = torch.exp(-log_scales)
    half, away = inverse / 255, (inverse * centred).abs()
    least = half.clamp(min=1e-9)  # below which ln(2 sinh h) is ln(2 h)
    width = torch.where(
        half > 1e-9,
        torch.log(torch.expm1(least) - torch.expm1(-least)),
        -log_scales - math.log(127.5),
    )
    inside = width - away - F.softplus(half - away) - F.softplus(-half - away)
    return torch.where(
        values < -0.999,
        -F.softplus(-inverse * (centred + 1 / 255)),
        torch.where(values > 0.999, -F.softplus(inverse * (centred - 1 / 255)), inside),
    )


def _mixture_log_probs(mixture: Mixture, scaled: Tensor) -> Tensor:
    """Give log P of the C values jointly: ``scaled: [..., C]`` in [-1, 1] → ``[...]``."""
    total = F.log_softmax(mixture.weights, -1)
    for channel in range(scaled.shape[-1]):
        means = channel_means(mixture, channel, scaled)
        value = scaled[..., channel].unsqueeze(-1)
        total = total + logistic_log_prob(value, means, mixture.log_scales[..., channel, :])
    return torch.logsumexp(total, -1)


def _to_unit(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) / 127.5 - 1


def _apply_temperature(logits: Tensor, heat: Tensor) -> Tensor:
    """Divide logits by a temperature, the largest being 0 before: the coldest would be infinite."""
    return (logits - logits.amax(-1, keepdim=True)) / heat


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw the first index whose cumulated weight exceeds ``u`` × total: ``[B, X], [B] → [B]``."""
    cumulated = weights.cumsum(-1)
    threshold = uniforms.unsqueeze(-1) * cumulated[..., -1:]
    return (cumulated <= threshold).sum(-1).clamp(max=weights.shape[-1] - 1)


def apply_top_p(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the likeliest values that hold ``top_p`` of the weight: ``[B, X], [B]``.

    A value stays if those likelier than it hold less than that; of equals the lower comes first.
    """
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    dropped = before >= top_p.unsqueeze(-1) * ordered.sum(-1, keepdim=True)
    dropped = dropped & (top_p < 1).unsqueeze(-1)
    return weights.masked_fill(torch.empty_like(dropped).scatter_(-1, order, dropped), 0)


class Head(nn.Module):
    """The predictor and its meaning: parameters, exact bits, and samples."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.channels = config.step_channels
        self.categorical = config.head == "categorical"
        self.predictor = nn.Linear(config.d_model, config.head_outputs)
        self.tables: nn.Parameter | None = None
        if self.categorical and self.channels > 1:
            pairs = self.channels * (self.channels - 1) // 2
            self.tables = nn.Parameter(torch.zeros(pairs, VALUES, VALUES))

    def forward(self, x: Tensor) -> Tensor:
        """Give the parameters of the distribution: ``[..., D]`` → ``[..., head_outputs]``.

        In the weights' own precision under autocast too: near 1, the largest mean of a logistic,
        bfloat16's numbers are half an intensity apart or more.
        """
        return full_precision_linear(x, self.predictor.weight, self.predictor.bias)

    def logits(self, parameters: Tensor, channel: int, values: Tensor) -> Tensor:
        """Give a channel's 256 logits, given earlier channels' values, integers ``[..., C]``."""
        if self.channels == 1:
            return parameters
        logits: Tensor = parameters.unflatten(-1, (self.channels, VALUES))[..., channel, :]
        first_pair = channel * (channel - 1) // 2
        for other in range(channel):
            assert self.tables is not None
            logits = logits + F.embedding(values[..., other], self.tables[first_pair + other])
        return logits

    def bits(self, parameters: Tensor, values: Tensor) -> Tensor:
        """Give -log2 P(values): ``[..., P]``, integers ``[..., C]`` → float32 or more ``[...]``."""
        parameters = parameters if parameters.dtype == torch.float64 else parameters.float()
        native = nll.supports_nll(parameters)
        cost: Tensor
        if not self.categorical:
            if native:
                flat = parameters.flatten(0, -2), values.to(torch.uint8).flatten(0, -2)
                cost = nll.mixture_nll(*flat)[0].view(values.shape[:-1])
            else:
                mixture = split_mixture(parameters, self.channels)
                cost = -_mixture_log_probs(mixture, _to_unit(values, parameters.dtype))
            return cost / _LN2
        values = values.long()
        total = parameters.new_zeros(values.shape[:-1])
        for channel in range(self.channels):
            logits = self.logits(parameters, channel, values).flatten(0, -2)
            value = values[..., channel].flatten()
            if native:
                cost = nll.categorical_nll(logits, value.to(torch.uint8))[0]
            else:
                cost = F.cross_entropy(logits, value, reduction="none")
            total = total + cost.view_as(total)
        return total / _LN2

    def log_probs(
        self, parameters: Tensor, channel: int, values: Tensor, heat: Tensor | None = None
    ) -> Tensor:
        """Give the log probability of each value of a channel, given the earlier channels' values.

        ``parameters: [B, P]``, ``values``: integers ``[B, C]``, ``heat: [B]`` a temperature above
        0, 1 for None: it divides logits, and multiplies the scales of logistics. Returns
        ``[B, 256]``.
        """
        hot = torch.ones_like(parameters[:, :1]) if heat is None else heat.unsqueeze(-1)
        if self.categorical:
            cold = _apply_temperature(self.logits(parameters, channel, values), hot)
            return F.log_softmax(cold, -1).clamp(min=MIN_LOG_PROB)
        mixture = split_mixture(parameters, self.channels)
        log_scales = (mixture.log_scales + hot.log().unsqueeze(-1)).clamp(min=MIN_WARM_LOG_SCALE)
        scaled = _to_unit(values, parameters.dtype)
        cold = _apply_temperature(mixture.weights, hot)
        log_weights = F.log_softmax(cold, -1).clamp(min=MIN_LOG_PROB)
        for earlier in range(channel):  # the components' weights given the values before (Bayes)
            means, value = channel_means(mixture, earlier, scaled), scaled[:, earlier : earlier + 1]
            log_weights = log_weights + logistic_log_prob(value, means, log_scales[:, earlier])
        everything = torch.arange(VALUES, device=parameters.device).view(1, -1, 1)
        each = logistic_log_prob(
            _to_unit(everything, parameters.dtype),
            channel_means(mixture, channel, scaled).unsqueeze(-2),
            log_scales[:, channel].unsqueeze(-2),
        )
        # Rounding leaves a sum that is not quite 1.
        total = torch.logsumexp(log_weights.unsqueeze(-2) + each, -1)
        return F.log_softmax(total, -1).clamp(min=MIN_LOG_PROB)

    def sample(
        self,
        parameters: Tensor,
        uniforms: Tensor,
        temperature: Tensor,
        top_p: Tensor | None = None,
        guidance: Tensor | None = None,
        unconditional: Tensor | None = None,
    ) -> Tensor:
        """Draw the step's values by inverse CDF from the given uniforms, channel after channel.

        ``parameters: [B, P]``, ``uniforms: [B, draws]`` in (0, 1), ``temperature: [B]`` ≥ 0, 0
        for the most likely value. A mixture's first uniform chooses its component, then one a
        channel is its logistic's, whose scale the temperature multiplies.

        Rows of another ``top_p`` or ``guidance`` than 1, each ``[B]``, draw from the 256 values of
        a channel instead: tempered, guided away from the parameters that the network gives without
        the label, ``unconditional: [B, P]`` (Ho & Salimans 2022), and cut to the likeliest that
        hold
        ``top_p``. Beyond guidance 1 they are cut before it, too, by a quarter as much, so that only
        what is likely with the label is made likelier (as in Li et al. 2022, section 3.2); cut
        by as much, some digits are blots. Returns uint8 ``[B, C]``.
        """
        exact = parameters.dtype == torch.float64
        parameters = parameters if exact else parameters.float()
        greedy = temperature == 0
        # A row at temperature 0 draws at 1 too, and the draw is not used.
        heat = torch.where(greedy, 1.0, temperature).to(parameters.dtype)
        if self.categorical:
            values = self._sample_categorical(parameters, uniforms, heat)
        else:
            values = self._sample_mixture(parameters, uniforms, heat)
        one = torch.ones_like(heat)
        top_p = one if top_p is None else top_p.to(heat)
        guidance = one if guidance is None else guidance.to(heat)
        if unconditional is None:
            unconditional = parameters
        # 256 values a channel, of ten logistics each: only for the rows that ask.
        shaped = (greedy | (top_p < 1) | (guidance != 1)).nonzero().squeeze(-1)
        if shaped.numel():
            values[shaped] = self._sample_shaped(
                parameters[shaped], unconditional[shaped].to(parameters), uniforms[shaped],
                heat[shaped], greedy[shaped], top_p[shaped], guidance[shaped],
            )  # fmt: skip
        return values.to(torch.uint8)

    def _sample_categorical(self, parameters: Tensor, uniforms: Tensor, heat: Tensor) -> Tensor:
        values = self._no_values(parameters)
        for channel in range(self.channels):
            logits = self.logits(parameters, channel, values)
            weights = F.softmax(_apply_temperature(logits, heat.unsqueeze(-1)), -1)
            values[:, channel] = _inverse_cdf(weights, uniforms[:, channel])
        return values

    def _sample_mixture(self, parameters: Tensor, uniforms: Tensor, heat: Tensor) -> Tensor:
        mixture = split_mixture(parameters, self.channels)
        cold = _apply_temperature(mixture.weights, heat.unsqueeze(-1))
        component = _inverse_cdf(F.softmax(cold, -1), uniforms[:, 0]).unsqueeze(-1)
        values = self._no_values(parameters)
        for channel in range(self.channels):
            scaled = _to_unit(values, parameters.dtype)
            mean = channel_means(mixture, channel, scaled).gather(-1, component).squeeze(-1)
            log_scale = mixture.log_scales[:, channel].gather(-1, component).squeeze(-1)
            u = uniforms[:, 1 + channel].to(parameters.dtype)
            drawn = mean + heat * log_scale.exp() * (u.log() - (-u).log1p())
            # Rounding half up gives exactly the bins of the likelihood, edges included.
            value = torch.floor((drawn + 1) * 127.5 + 0.5).clamp(0, VALUES - 1)
            values[:, channel] = value.long()
        return values

    def _sample_shaped(
        self, parameters: Tensor, unconditional: Tensor, uniforms: Tensor,
        heat: Tensor, greedy: Tensor, top_p: Tensor, guidance: Tensor,
    ) -> Tensor:  # fmt: skip
        first = uniforms.shape[1] - self.channels  # a mixture's component is not drawn
        values = self._no_values(parameters)
        g = guidance.unsqueeze(-1)
        for channel in range(self.channels):
            shaped = self.log_probs(parameters, channel, values, heat)
            guided = (guidance != 1).nonzero().squeeze(-1)
            if guided.numel():
                mine = shaped[guided]
                kept = apply_top_p(F.softmax(mine, -1), 1 - (1 - top_p[guided]) / 4)
                without = self.log_probs(
                    unconditional[guided], channel, values[guided], heat[guided]
                )
                mine = g[guided] * mine + (1 - g[guided]) * without
                cut = (kept == 0) & ((top_p < 1) & (guidance > 1))[guided].unsqueeze(-1)
                shaped[guided] = mine.masked_fill(cut, -torch.inf)
            weights = apply_top_p(F.softmax(shaped, -1), top_p)
            drawn = _inverse_cdf(weights, uniforms[:, first + channel])
            values[:, channel] = torch.where(greedy, shaped.argmax(-1), drawn)
        return values

    def _no_values(self, parameters: Tensor) -> Tensor:
        shape = (parameters.shape[0], self.channels)
        return torch.zeros(shape, dtype=torch.long, device=parameters.device)
