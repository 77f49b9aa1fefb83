"""JSON replies about generations: pydantic models, documented at ``/docs``."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scanline.model.config import NO_LABEL
from scanline.service.api.requests import Output
from scanline.service.engine.generation import Generation, GenerationStatus
from scanline.service.engine.image import FinishReason, Image, Status
from scanline.service.recipes.png_encoding import encode_image


def example(**fields: Any) -> ConfigDict:
    """Return the configuration of a pydantic model with an example."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


StatusField = Annotated[str, Field(json_schema_extra={"enum": list(Status)})]
FinishReasonField = Annotated[str, Field(json_schema_extra={"enum": list(FinishReason)})]

_IMAGE: dict[str, Any] = {
    "index": 0, "seed": 1, "status": "finished", "finish_reason": "length", "position": 784,
    "bits_per_dim": 0.61, "label": "7", "effective_particles": 12.5, "log_evidence": -31.204,
}  # fmt: skip  # no None: FastAPI would drop it from the example
_PNG = _IMAGE | {"png": "iVBORw0KGgo…"}
USAGE = {"pixels": 784, "seconds": 0.1, "queue_seconds": 0.001, "pixels_per_second": 7840.0}


ImageLabel = Annotated[str | None, Field(description="The image's class; null if it has none.")]


class ImageFacts(BaseModel):
    """One image without its pixels."""

    model_config = example(**_IMAGE)

    index: int
    seed: int
    status: StatusField
    finish_reason: FinishReasonField | None
    position: Annotated[int, Field(description="Number of pixels drawn or known.")]
    bits_per_dim: Annotated[float | None, Field(description="Exact; null until it is finished.")]
    label: ImageLabel
    effective_particles: Annotated[
        float | None,
        Field(description="With particles: the effective number of particles at the end."),
    ]
    log_evidence: Annotated[
        float | None,
        Field(
            description="With particles: logarithm of the probability of the known pixels after "
            "the first unknown one, under the plain model, averaged over the pixels drawn before "
            "them. An estimate of their log-probability with neutral sampling options."
        ),
    ]


class PngImage(ImageFacts):
    """One image; its pixels are a base64 PNG, null until it is finished."""

    model_config = example(**_PNG)

    png: str | None


class ValuesImage(ImageFacts):
    """One image; its pixels are a flat list, channels innermost, null until it is finished."""

    model_config = example(**_IMAGE, values=[0, 0, 12, 255])

    values: list[int] | None


ImageReply = PngImage | ValuesImage


def label_name(generation: Generation, image: Image) -> str | None:
    """Return the name of an image's class; None if it has none."""
    return None if image.label == NO_LABEL else generation.config.classes[image.label]


def image_reply(generation: Generation, image: Image, output: Output) -> ImageReply:
    """Describe an image, with its pixels as ``output`` says."""
    status = image.status  # read first and once, because the image may finish meanwhile
    done, particles = status is Status.FINISHED, image.particles
    facts: dict[str, Any] = {
        "index": image.index,
        "seed": image.seed,
        "status": status,
        "finish_reason": image.finish_reason if done else None,
        "position": image.position,
        "bits_per_dim": generation.bits_per_dim(image) if done else None,
        "label": label_name(generation, image),
        "effective_particles": None if particles is None else round(particles.effective_size, 2),
        "log_evidence": None if particles is None else round(particles.log_evidence, 3),
    }
    if output == "values":
        values = image.read(0, generation.config.pixels).ravel().tolist() if done else None
        return ValuesImage(**facts, values=values)
    png = encode_image(generation, image) if done else None
    return PngImage(**facts, png=None if png is None else base64.b64encode(png).decode())


class Usage(BaseModel):
    """Pixels drawn, and seconds spent drawing and in the queue."""

    model_config = example(**USAGE)

    pixels: int
    seconds: float
    queue_seconds: float
    pixels_per_second: float

    @classmethod
    def of(cls, generation: Generation) -> Usage:
        """Measure a generation up to now."""
        now = generation.clock() if generation.ended is None else generation.ended
        started = now if generation.started is None else generation.started
        seconds = now - started
        return cls(
            pixels=generation.drawn_pixels,
            seconds=round(seconds, 4),
            queue_seconds=round(started - generation.created, 4),
            pixels_per_second=round(generation.drawn_pixels / seconds, 1) if seconds > 0 else 0.0,
        )


class GenerationReply(BaseModel):
    """A generation and its images."""

    model_config = example(
        id="gen_5f2c", object="generation", model="mnist", status="finished", width=28, height=28,
        channels=1, images=[_PNG], usage=USAGE, error=None, warnings=[],
    )  # fmt: skip

    id: str
    object: Literal["generation"] = "generation"
    model: str
    status: Annotated[str, Field(json_schema_extra={"enum": list(GenerationStatus)})]
    width: int
    height: int
    channels: int
    images: list[ImageReply]
    usage: Usage
    error: str | None
    warnings: list[str]

    @classmethod
    def of(cls, generation: Generation, output: Output) -> GenerationReply:
        """Describe a generation in its current state, with pixels as ``output`` says."""
        # The status is read first, because the generation may finish meanwhile.
        config, status = generation.config, generation.status
        return cls(
            id=generation.id,
            model=generation.model,
            status=status,
            width=config.width,
            height=config.height,
            channels=config.channels,
            images=[image_reply(generation, image, output) for image in generation.images],
            usage=Usage.of(generation),
            error=generation.error if status is GenerationStatus.FAILED else None,
            warnings=generation.warnings,
        )
