"""Shapes of the server-sent events of a generation, and their documentation."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, with_config
from typing_extensions import TypedDict

from scanline.service.api.replies import USAGE, ImageLabel, ImageReply, Usage, example, label_name
from scanline.service.engine.generation import Generation
from scanline.service.http.errors import ErrorReply
from scanline.service.http.sse import stream_schema

_SEEDED: dict[str, Any] = {"index": 0, "seed": 1, "label": "7"}
_UPDATE: dict[str, Any] = {"index": 0, "position": 56, "values": [0, 0, 12]}


class SeededImage(BaseModel):
    """Seed and class of an image that is not drawn yet."""

    model_config = example(**_SEEDED)

    index: int
    seed: int
    label: ImageLabel


class Started(BaseModel):
    """Event ``started``: the images to draw, and the number of images queued before them."""

    model_config = example(
        id="gen_5f2c", model="mnist", width=28, height=28, channels=1, images=[_SEEDED],
        queue_position=0,
    )  # fmt: skip

    id: str
    model: str
    width: int
    height: int
    channels: int
    images: list[SeededImage]
    queue_position: int

    @classmethod
    def of(cls, generation: Generation, queue_position: int) -> Started:
        """Describe a generation at the start of its stream."""
        config = generation.config
        return cls(
            id=generation.id,
            model=generation.model,
            width=config.width,
            height=config.height,
            channels=config.channels,
            images=[
                SeededImage(index=i.index, seed=i.seed, label=label_name(generation, i))
                for i in generation.images
            ],
            queue_position=queue_position,
        )


class Waiting(BaseModel):
    """Event ``waiting``, sent repeatedly: images queued before it, and the estimated time."""

    model_config = example(queue_position=12, estimated_seconds=3.5)

    queue_position: int
    estimated_seconds: float


@with_config(example(**_UPDATE))
class Update(TypedDict):
    """New values of an image from a position on, in raster order, channels innermost."""

    index: int
    position: int
    values: list[int]


@with_config(example(updates=[_UPDATE]))
class Pixels(TypedDict):
    """Event ``pixels``: new values of some images.

    For the documentation only: ``_PixelsWriter`` writes this event, because pydantic would be too
    slow for 60 events per second.
    """

    updates: list[Update]


class Completed(BaseModel):
    """Event ``completed``: all images are drawn, or the generation was cancelled."""

    model_config = example(id="gen_5f2c", status="finished", usage=USAGE, warnings=[])

    id: str
    status: Annotated[str, Field(json_schema_extra={"enum": ["finished", "cancelled"]})]
    usage: Usage
    warnings: list[str]


EVENTS: dict[str, Any] = {
    "started": Started, "waiting": Waiting, "pixels": Pixels, "image": ImageReply,
    "completed": Completed, "error": ErrorReply,
}  # fmt: skip
EVENT_STREAM = stream_schema(EVENTS)
