"""JSON replies: pydantic models, documented at ``/docs``, and how they are built."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from scanline.model.config import NO_LABEL
from scanline.model.evaluation.records import recorded_bits_per_dim
from scanline.service.api.requests import Output
from scanline.service.engine.generation import FinishReason, Generation, Image, Status
from scanline.service.recipes.png_writer import PngWriter
from scanline.service.state.registry import LoadedModel


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
_MODEL = {
    "id": "mnist", "object": "model", "created": 1700000000, "owned_by": "scanline", "width": 28,
    "height": 28, "channels": 1, "classes": ["0", "1"], "bits_per_dim": 0.61, "steps": 784,
    "order": "pixel", "attention": "linear", "parameters": 1394176, "backend": "native",
    "weights": "0f" * 32, "arithmetic": 1, "slow": False, "slots": 64, "guidance": 2.0,
    "top_p": 1.0,
}  # fmt: skip
_CHANNEL = {"channel": 0, "probabilities": [0.98, 0.001], "unconditional": [0.95, 0.004]}
_SCORE = {"index": 0, "bits": 493.9, "bits_per_dim": 0.63, "pixel_bits": [0.002, 1.25]}


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
            "them. An estimate of their log-probability if temperature, top_p and guidance are 1."
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


def image_reply(
    generation: Generation, image: Image, output: Output, writer: PngWriter
) -> ImageReply:
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
    png = writer.encode_image(generation, image) if done else None
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
    status: StatusField
    width: int
    height: int
    channels: int
    images: list[ImageReply]
    usage: Usage
    error: str | None
    warnings: list[str]

    @classmethod
    def of(cls, generation: Generation, writer: PngWriter, output: Output) -> GenerationReply:
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
            images=[image_reply(generation, image, output, writer) for image in generation.images],
            usage=Usage.of(generation),
            error=generation.error if status is Status.FINISHED else None,
            warnings=generation.warnings,
        )


class ModelReply(BaseModel):
    """A served model."""

    model_config = example(**_MODEL)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "scanline"
    width: int
    height: int
    channels: int
    classes: list[str]
    bits_per_dim: Annotated[
        float | None, Field(description="On the test set if measured, otherwise in training.")
    ]
    steps: Annotated[int, Field(description="Number of network steps per image.")]
    order: str
    attention: Annotated[
        str, Field(description="linear, softmax, or lsh-N with N rounds of hashing.")
    ]
    parameters: int
    backend: str
    weights: Annotated[
        str, Field(description="SHA-256 of the config and the weights, as in a recipe.")
    ]
    arithmetic: Annotated[
        int | None,
        Field(
            description="Version of the arithmetic: with the same version and weights, a seed "
            "gives the same bytes on every CPU. Null if they depend on the machine."
        ),
    ]
    slow: Annotated[
        bool,
        Field(
            description="Whether this machine draws many times slower than usual; its log says why."
        ),
    ]
    slots: int
    guidance: Annotated[float, Field(description="Default for images with a label.")]
    top_p: Annotated[float, Field(description="Default.")]

    @classmethod
    def of(cls, name: str, loaded: LoadedModel) -> ModelReply:
        """Describe a loaded model."""
        engine = loaded.engine
        config = engine.config
        return cls(
            id=name,
            created=loaded.created,
            width=config.width,
            height=config.height,
            channels=config.channels,
            classes=list(config.classes),
            bits_per_dim=recorded_bits_per_dim(loaded.checkpoint.facts),
            steps=config.steps,
            order=config.order,
            attention=config.attention,
            parameters=sum(p.numel() for p in loaded.checkpoint.model.parameters()),
            backend=engine.backend,
            weights=loaded.checkpoint.digest,
            arithmetic=engine.arithmetic,
            slow=engine.slow,
            slots=engine.slots,
            guidance=loaded.checkpoint.defaults.guidance,
            top_p=loaded.checkpoint.defaults.top_p,
        )


class ModelList(BaseModel):
    """List of the served models, the default first."""

    model_config = example(object="list", data=[_MODEL], watched=False)

    object: Literal["list"] = "list"
    data: list[ModelReply]
    watched: Annotated[
        bool, Field(description="True if the server loads changed files of models by itself.")
    ]


class FailedModel(BaseModel):
    """A file that was not loaded; what was served before still is."""

    model_config = example(model="mnist", message="runs/mnist.safetensors is damaged")

    model: Annotated[
        str | None, Field(description="Name of the model; null if the folder cannot be read.")
    ]
    message: str


class ReloadReply(BaseModel):
    """Changes of the served models."""

    model_config = example(
        object="reload", added=[], replaced=["mnist"], removed=[],
        failed=[FailedModel.model_config["json_schema_extra"]["examples"][0]],  # type: ignore[index]
    )  # fmt: skip

    object: Literal["reload"] = "reload"
    added: list[str]
    replaced: list[str]
    removed: list[str]
    failed: list[FailedModel]


class Score(BaseModel):
    """Bits of one picture: in total, per dimension, and per pixel."""

    model_config = example(**_SCORE)

    index: int
    bits: float
    bits_per_dim: float
    pixel_bits: Annotated[
        list[float] | None, Field(description="In raster order; null unless `per_pixel` is set.")
    ]


class ScoreReply(BaseModel):
    """Scores of pictures, in the order in which they were sent."""

    model_config = example(
        object="list", model="mnist", width=28, height=28, channels=1, data=[_SCORE]
    )

    object: Literal["list"] = "list"
    model: str
    width: int
    height: int
    channels: int
    data: list[Score]


class DistributionReply(BaseModel):
    """Distribution of the next value."""

    model_config = example(model="mnist", position=3, channel=0, probabilities=[0.98, 0.001])

    model: str
    position: Annotated[int, Field(description="Pixel of the value.")]
    channel: Annotated[int, Field(description="0 for grey or red, 1 for green, 2 for blue.")]
    probabilities: Annotated[list[float], Field(description="Of the 256 values, at temperature 1.")]


class ChannelDistribution(BaseModel):
    """Distribution of one channel of a pixel."""

    model_config = example(**_CHANNEL)

    channel: Annotated[int, Field(description="0 for grey or red, 1 for green, 2 for blue.")]
    probabilities: Annotated[list[float], Field(description="Of the 256 values, at temperature 1.")]
    unconditional: Annotated[
        list[float] | None,
        Field(description="The same without the label; null unless `unconditional` is set."),
    ]


class PixelDistributionReply(BaseModel):
    """Distributions of the channels of a pixel."""

    model_config = example(model="mnist", position=3, channels=[_CHANNEL])

    model: str
    position: Annotated[int, Field(description="The pixel.")]
    channels: Annotated[
        list[ChannelDistribution],
        Field(description="From channel 0 to that of the next value, each given those before it."),
    ]
