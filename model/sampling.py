"""Sampling parameters: validation, and the model's defaults."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scanline.model.checkpoint import SamplingDefaults
from scanline.model.config import MAX_GUIDANCE, NO_LABEL, ModelConfig
from scanline.model.noise import RANDOM
from scanline.model.particles import MAX_PARTICLES


class SamplingError(ValueError):
    """Invalid sampling parameter, with the field ``param`` and an error ``code``."""

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class SamplingParams(NamedTuple):
    """Validated sampling parameters, with the model's defaults filled in.

    Attributes:
        label: A class number, or -1 for none.
        random_label: Whether the seed of each image chooses its class.
        top_p: Share of the probability to keep, in (0, 1].
        guidance: Strength of classifier-free guidance; 1 for none.
        particles: The number of particles per image.
    """

    label: int
    random_label: bool
    top_p: float
    guidance: float
    particles: int

    @property
    def slots(self) -> int:
        """Number of decoder slots per image."""
        return self.particles * (2 if self.guidance != 1 else 1)


def resolve(
    config: ModelConfig,
    defaults: SamplingDefaults,
    label: int | str | None,
    top_p: float | None = None,
    guidance: float | None = None,
    particles: int = 1,
) -> SamplingParams:
    """Validate sampling parameters; replace None by the model's default.

    The label "random" means that the seed of each image chooses its class, unless a class has
    that name. Without a label the default guidance is 1.

    Raises:
        SamplingError: If a parameter is out of range or the model does not support it.
    """
    names = [name.lower() for name in config.classes]
    by_seed = isinstance(label, str) and label.strip().lower() == RANDOM and RANDOM not in names
    if by_seed and not names:
        raise SamplingError(
            "this model has no classes; leave label out",
            "label",
            "unknown_class",
        )
    try:
        number = NO_LABEL if by_seed else config.class_index(label)
    except ValueError as error:
        raise SamplingError(str(error), "label", "unknown_class") from None
    labelled = by_seed or number != NO_LABEL
    if guidance is None:
        guidance = defaults.guidance if labelled else 1.0
    elif not 0 <= guidance <= MAX_GUIDANCE:
        raise SamplingError(f"guidance must be 0 to {MAX_GUIDANCE:g}", "guidance", "out_of_range")
    elif guidance != 1 and not names:
        raise SamplingError(
            "this model has no classes, so guidance has no effect; leave it out",
            "guidance",
            "no_label",
        )
    elif guidance != 1 and not labelled:
        raise SamplingError(
            "guidance needs a label: set label, or leave guidance out",
            "guidance",
            "no_label",
        )
    if top_p is None:
        top_p = defaults.top_p
    elif not 0 < top_p <= 1:
        raise SamplingError("top_p must be above 0 and at most 1", "top_p", "out_of_range")
    if not 1 <= particles <= MAX_PARTICLES:
        raise SamplingError(f"particles must be 1 to {MAX_PARTICLES}", "particles", "out_of_range")
    # Decoders use float32: treat what rounds to 1 as 1, and keep top_p above 0.
    if np.float32(guidance) == 1:
        guidance = 1.0
    top_p = max(top_p, float(np.finfo(np.float32).tiny))
    return SamplingParams(number, by_seed, top_p, guidance, particles)
