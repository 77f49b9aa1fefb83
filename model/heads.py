"""Output heads: exact likelihood, and sampling by inverse CDF.

Two kinds:

* ``categorical``: 256 logits of the one value that a step decides.
* ``logistic_mixture``: ten discretised logistics (Salimans et al., *PixelCNN++*, ICLR 2017,
  eq. 1-3). A component has one mean and log-scale per channel that a step decides; the mean of a
  later channel is shifted linearly by the values of the earlier ones.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scanline.kernels.constants import MIN_LOG_PROB, MIN_LOG_SCALE, MIN_WARM_LOG_SCALE, MIXTURES
from scanline.kernels.ops.linear import full_precision_linear
from scanline.model.config import VALUES, ModelConfig

_LN2 = math.log(2.0)


class Mixture(NamedTuple):
    """Mixture of M logistics over C channels in [-1, 1].

    ``weights: [..., M]`` are logits, ``means`` and ``log_scales`` are ``[..., C, M]``, and
    ``coefficients: [..., C (C - 1) / 2, M]`` has the channel pairs (1, 0), (2, 0), (2, 1).
    """

    weights: Tensor
    means: Tensor
    log_scales: Tensor
    coefficients: Tensor


def split_mixture(parameters: Tensor, channels: int) -> Mixture:
    """Split the head's output ``[..., M (1 + 2 C + C (C - 1) / 2)]`` into its parts."""
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
    """Return a channel's means ``[..., M]`` given the values of the earlier channels.

    ``earlier: [..., C]`` has values in [-1, 1]; only the first ``channel`` of them are read.
    """
    means = mixture.means[..., channel, :]
    first_pair = channel * (channel - 1) // 2
    for other in range(channel):
        coefficient = mixture.coefficients[..., first_pair + other, :]
        means = means + coefficient * earlier[..., other].unsqueeze(-1)
    return means


def logistic_log_prob(values: Tensor, means: Tensor, log_scales: Tensor) -> Tensor:
    """Return log P(value) of discretised logistics; values in [-1, 1], shapes broadcast.

    The bin of a value is 2/255 wide; the first and the last bin extend to infinity. Let a be the
    distance of the bin's centre from the mean and h half its width, both divided by the scale. Its
    mass is σ(a + h) - σ(a - h) = 2 sinh(h) e^-a / ((1 + e^(h-a)) (1 + e^(-h-a))), a form without
    cancellation.
    """
    centred = values - means
    inverse = torch.exp(-log_scales)
    half, distance = inverse / 255, (inverse * centred).abs()
    clamped = half.clamp(min=1e-9)  # below this, ln(2 sinh h) is ln(2 h)
    width = torch.where(
        half > 1e-9,
        torch.log(torch.expm1(clamped) - torch.expm1(-clamped)),
        -log_scales - math.log(127.5),
    )
    inside = width - distance - F.softplus(half - distance) - F.softplus(-half - distance)
    return torch.where(
        values < -0.999,
        -F.softplus(-inverse * (centred + 1 / 255)),
        torch.where(values > 0.999, -F.softplus(inverse * (centred - 1 / 255)), inside),
    )


def _mixture_log_probs(mixture: Mixture, scaled: Tensor) -> Tensor:
    """Return the joint log P of C values: ``scaled: [..., C]`` in [-1, 1] → ``[...]``."""
    total = F.log_softmax(mixture.weights, -1)
    for channel in range(scaled.shape[-1]):
        means = channel_means(mixture, channel, scaled)
        value = scaled[..., channel].unsqueeze(-1)
        total = total + logistic_log_prob(value, means, mixture.log_scales[..., channel, :])
    return torch.logsumexp(total, -1)


def _to_unit(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) / 127.5 - 1


def _apply_temperature(logits: Tensor, temperature: Tensor) -> Tensor:
    """Shift logits to a maximum of 0, then divide by the temperature, so that none overflows."""
    return (logits - logits.amax(-1, keepdim=True)) / temperature


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds u × total: ``[B, X], [B] → [B]``."""
    cumulated = weights.cumsum(-1)
    threshold = uniforms.unsqueeze(-1) * cumulated[..., -1:]
    return (cumulated <= threshold).sum(-1).clamp(max=weights.shape[-1] - 1)


def apply_top_p(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the most likely values with a share ``top_p`` of the weight: ``[B, X], [B]``.

    A value is kept if the more likely ones hold less than ``top_p``. Ties go to the lower value.
    """
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    dropped = before >= top_p.unsqueeze(-1) * ordered.sum(-1, keepdim=True)
    dropped = dropped & (top_p < 1).unsqueeze(-1)
    return weights.masked_fill(torch.empty_like(dropped).scatter_(-1, order, dropped), 0)


class Head(nn.Module):
    """Output layer: distribution parameters, exact bits and samples."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.channels = config.step_channels
        self.categorical = config.head == "categorical"
        self.predictor = nn.Linear(config.d_model, config.head_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the distribution's parameters: ``[..., D]`` → ``[..., head_outputs]``.

        Uses the weights' own precision under autocast too, because near 1, the largest mean of a
        logistic, adjacent bfloat16 numbers are half an intensity apart or more.
        """
        return full_precision_linear(x, self.predictor.weight, self.predictor.bias)

    def bits(self, parameters: Tensor, values: Tensor) -> Tensor:
        """Return -log2 P(values): ``[..., P]``, integers ``[..., C]`` → ``[...]``."""
        parameters = parameters if parameters.dtype == torch.float64 else parameters.float()
        if not self.categorical:
            mixture = split_mixture(parameters, self.channels)
            return _mixture_log_probs(mixture, _to_unit(values, parameters.dtype)) / -_LN2
        logits, targets = parameters.flatten(0, -2), values.flatten().long()
        nats = F.cross_entropy(logits, targets, reduction="none")
        return nats.view(values.shape[:-1]) / _LN2

    def log_probs(
        self,
        parameters: Tensor,
        channel: int,
        values: Tensor,
        temperature: Tensor | None = None,
    ) -> Tensor:
        """Return the log probability of each value of a channel: ``[B, 256]``.

        Args:
            parameters: ``[B, P]``.
            channel: The channel.
            values: Integers ``[B, C]``; only the earlier channels are read.
            temperature: ``[B]``, above 0; 1 if None. It divides logits and multiplies the scales
                of logistics.
        """
        if temperature is None:
            temperature = torch.ones_like(parameters[:, 0])
        temperature = temperature.unsqueeze(-1)
        if self.categorical:
            logits = _apply_temperature(parameters, temperature)
            return F.log_softmax(logits, -1).clamp(min=MIN_LOG_PROB)
        mixture = split_mixture(parameters, self.channels)
        log_scales = mixture.log_scales + temperature.log().unsqueeze(-1)
        log_scales = log_scales.clamp(min=MIN_WARM_LOG_SCALE)
        scaled = _to_unit(values, parameters.dtype)
        logits = _apply_temperature(mixture.weights, temperature)
        log_weights = F.log_softmax(logits, -1).clamp(min=MIN_LOG_PROB)
        for earlier in range(channel):  # posterior weights of the components given earlier values
            means, value = channel_means(mixture, earlier, scaled), scaled[:, earlier : earlier + 1]
            log_weights = log_weights + logistic_log_prob(value, means, log_scales[:, earlier])
        all_values = torch.arange(VALUES, device=parameters.device).view(1, -1, 1)
        each = logistic_log_prob(
            _to_unit(all_values, parameters.dtype),
            channel_means(mixture, channel, scaled).unsqueeze(-2),
            log_scales[:, channel].unsqueeze(-2),
        )
        # Normalised again below, because of rounding.
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
        """Sample the step's values by inverse CDF, channel after channel: uint8 ``[B, C]``.

        For a mixture, the first uniform chooses the component. The others are one per channel for
        its logistic, whose scale is multiplied by the temperature.

        Rows with ``top_p`` or ``guidance`` other than 1 sample from the 256 values of a channel
        instead: after the temperature come guidance (Ho & Salimans 2022) and ``top_p``. With
        guidance above 1, the conditional distribution is cut before guidance too, but only by a
        quarter as much. So guidance raises only values that are likely under the label (similar to
        Li et al. 2022, section 3.2). Cutting by the full amount turned some digits into blots.

        Args:
            parameters: ``[B, P]``.
            uniforms: ``[B, draws]`` in (0, 1).
            temperature: ``[B]``, at least 0; 0 takes the most likely value.
            top_p: ``[B]``, 1 if None.
            guidance: ``[B]``, 1 if None.
            unconditional: ``[B, P]``, the parameters without the label, for guidance.
        """
        exact = parameters.dtype == torch.float64
        parameters = parameters if exact else parameters.float()
        greedy = temperature == 0
        # Greedy rows sample at temperature 1 too, and the result is replaced below.
        temperature = torch.where(greedy, 1.0, temperature).to(parameters.dtype)
        if self.categorical:
            values = self._sample_categorical(parameters, uniforms, temperature)
        else:
            values = self._sample_mixture(parameters, uniforms, temperature)
        one = torch.ones_like(temperature)
        top_p = one if top_p is None else top_p.to(one)
        guidance = one if guidance is None else guidance.to(one)
        if unconditional is None:
            unconditional = parameters
        # Only the rows that need it, because 256 values of ten logistics each are costly. The same
        # rule is in Head::decide (kernels/native/head.h), sample_kernel (kernels/cuda/sampling.py)
        # and RowSampler::sample (kernels/cuda/fused/row_sampling.h).
        shaped = (greedy | (top_p < 1) | (guidance != 1)).nonzero().squeeze(-1)
        if shaped.numel():
            values[shaped] = self._sample_shaped(
                parameters[shaped], unconditional[shaped].to(parameters), uniforms[shaped],
                temperature[shaped], greedy[shaped], top_p[shaped], guidance[shaped],
            )  # fmt: skip
        return values.to(torch.uint8)

    def _sample_categorical(
        self, parameters: Tensor, uniforms: Tensor, temperature: Tensor
    ) -> Tensor:
        weights = F.softmax(_apply_temperature(parameters, temperature.unsqueeze(-1)), -1)
        return _inverse_cdf(weights, uniforms[:, 0]).unsqueeze(1)

    def _sample_mixture(self, parameters: Tensor, uniforms: Tensor, temperature: Tensor) -> Tensor:
        mixture = split_mixture(parameters, self.channels)
        logits = _apply_temperature(mixture.weights, temperature.unsqueeze(-1))
        component = _inverse_cdf(F.softmax(logits, -1), uniforms[:, 0]).unsqueeze(-1)
        values = self._no_values(parameters)
        for channel in range(self.channels):
            scaled = _to_unit(values, parameters.dtype)
            mean = channel_means(mixture, channel, scaled).gather(-1, component).squeeze(-1)
            log_scale = mixture.log_scales[:, channel].gather(-1, component).squeeze(-1)
            u = uniforms[:, 1 + channel].to(parameters.dtype)
            drawn = mean + temperature * log_scale.exp() * (u.log() - (-u).log1p())
            # Rounding half up gives the bins of the likelihood exactly, edges included.
            value = torch.floor((drawn + 1) * 127.5 + 0.5).clamp(0, VALUES - 1)
            values[:, channel] = value.long()
        return values

    def _sample_shaped(
        self, parameters: Tensor, unconditional: Tensor, uniforms: Tensor,
        temperature: Tensor, greedy: Tensor, top_p: Tensor, guidance: Tensor,
    ) -> Tensor:  # fmt: skip
        first = uniforms.shape[1] - self.channels  # skip the uniform for a mixture's component
        values = self._no_values(parameters)
        g = guidance.unsqueeze(-1)
        for channel in range(self.channels):
            shaped = self.log_probs(parameters, channel, values, temperature)
            guided = (guidance != 1).nonzero().squeeze(-1)
            if guided.numel():
                conditional = shaped[guided]
                kept = apply_top_p(F.softmax(conditional, -1), 1 - (1 - top_p[guided]) / 4)
                base = self.log_probs(
                    unconditional[guided], channel, values[guided], temperature[guided]
                )
                combined = g[guided] * conditional + (1 - g[guided]) * base
                cut = (kept == 0) & ((top_p < 1) & (guidance > 1))[guided].unsqueeze(-1)
                shaped[guided] = combined.masked_fill(cut, -torch.inf)
            weights = apply_top_p(F.softmax(shaped, -1), top_p)
            drawn = _inverse_cdf(weights, uniforms[:, first + channel])
            values[:, channel] = torch.where(greedy, shaped.argmax(-1), drawn)
        return values

    def _no_values(self, parameters: Tensor) -> Tensor:
        shape = (parameters.shape[0], self.channels)
        return torch.zeros(shape, dtype=torch.long, device=parameters.device)
