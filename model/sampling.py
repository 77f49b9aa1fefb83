"""Sampling parameters: the options of a request, and their resolution with a model's defaults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scanline.model.checkpoint import SamplingDefaults
from scanline.model.config import MAX_GUIDANCE, NO_LABEL, ModelConfig
from scanline.model.decoders.base import InputBatch
from scanline.model.noise import RANDOM, random_label
from scanline.model.particles import MAX_PARTICLES

MAX_TEMPERATURE = 2.0  # of options; a decoder takes any


class SamplingError(ValueError):
    """Invalid sampling option.

    Attributes:
        param: The name of the option.
        code: The kind of error, as in the HTTP API.
    """

    def __init__(self, message: str, param: str, code: str) -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampling options of a request, in which None selects the model's default.

    For a new option, see CONTRIBUTING.md, "A sampling option".

    Attributes:
        label: A class by name or number, "random" for a class chosen by each image's seed, None
            for no class.
        temperature: 1 samples from the model's distribution, 0 takes the most likely value.
        top_p: Total probability of the values that are kept.
        guidance: Strength of the label (classifier-free guidance); 1 is the plain model.
        particles: Number of particles per image (model/particles.py).
    """

    label: int | str | None = None
    temperature: float = 1.0
    top_p: float | None = None
    guidance: float | None = None
    particles: int = 1


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Resolved sampling parameters, without defaults of a model.

    Attributes:
        label: The index of the class, ``NO_LABEL`` for none.
        random_label: True if each image's class is chosen by its seed.
        temperature, top_p, guidance, particles: As in ``SamplingOptions``.
    """

    label: int = NO_LABEL
    random_label: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    guidance: float = 1.0
    particles: int = 1

    @property
    def guided(self) -> bool:
        """True if each slot needs a twin, which computes the unconditional distribution."""
        return self.guidance != 1

    @property
    def slots_per_image(self) -> int:
        """Number of decoder slots per image: one per particle, and their twins."""
        return self.particles * (2 if self.guided else 1)

    def image_label(self, config: ModelConfig, seed: int) -> int:
        """Return the class index of the image with this seed."""
        return random_label(seed, len(config.classes)) if self.random_label else self.label

    def write_to(self, inputs: InputBatch, row: int, label: int) -> None:
        """Set one row of a decoder's inputs, with the image's ``label``."""
        inputs.label[row] = label
        inputs.temperature[row] = self.temperature
        inputs.top_p[row] = self.top_p
        inputs.guidance[row] = self.guidance


def resolve(
    config: ModelConfig, defaults: SamplingDefaults, options: SamplingOptions
) -> SamplingParams:
    """Validate options, and fill in the model's defaults.

    The label "random" selects a class per image, unless the model has a class of that name. The
    default guidance applies to images with a label only.

    Raises:
        SamplingError: If an option is out of range, or if the model cannot honour it.
    """
    label, top_p, guidance = options.label, options.top_p, options.guidance
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
    if not 0 <= options.temperature <= MAX_TEMPERATURE:
        message = f"temperature must be 0 to {MAX_TEMPERATURE:g}"
        raise SamplingError(message, "temperature", "out_of_range")
    if top_p is None:
        top_p = defaults.top_p
    elif not 0 < top_p <= 1:
        raise SamplingError("top_p must be above 0 and at most 1", "top_p", "out_of_range")
    if not 1 <= options.particles <= MAX_PARTICLES:
        raise SamplingError(f"particles must be 1 to {MAX_PARTICLES}", "particles", "out_of_range")
    # Decoders use float32: treat what rounds to 1 as 1, and keep top_p above 0.
    if np.float32(guidance) == 1:
        guidance = 1.0
    top_p = max(top_p, float(np.finfo(np.float32).tiny))
    return SamplingParams(
        label=number,
        random_label=by_seed,
        temperature=options.temperature,
        top_p=top_p,
        guidance=guidance,
        particles=options.particles,
    )
