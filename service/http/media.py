"""Which form a reply takes (JSON, PNG, ZIP, a NumPy array or events), and how it names itself."""

from __future__ import annotations

from typing import Any, Literal, get_args

from fastapi import Request, Response
from pydantic import BaseModel

from scanline.service.generation import Generation
from scanline.service.http.errors import ApiError

Media = Literal[
    "application/json", "image/png", "application/zip", "application/x-npy", "text/event-stream"
]
MEDIA: tuple[Media, ...] = get_args(Media)

# What the headers of ``naming`` are, for the schema.
NAMING: dict[str, Any] = {
    "X-Generation-ID": {"description": "The generation.", "schema": {"type": "string"}},
    "X-Seed": {"description": "Of the first image.", "schema": {"type": "integer"}},
}


def choose_media(request: Request, stream: bool, given: set[str]) -> Media:
    """Choose the reply's media type, and refuse fields that would mean nothing in it."""
    media: Media = "text/event-stream" if stream else _acceptable(request)
    if "granularity" in given and media != "text/event-stream":
        raise ApiError(
            400, "granularity is about streams: leave it out, or set stream to true",
            param="granularity",
        )  # fmt: skip
    if "output" in given and media in ("image/png", "application/zip", "application/x-npy"):
        raise ApiError(
            400, f"output is about JSON and streams, and Accept asks for {media}: leave one out",
            param="output",
        )  # fmt: skip
    return media


def _acceptable(request: Request) -> Media:
    """Find the first media type of `Accept` that can be given, best quality first."""
    accept = request.headers.get("accept", "*/*")
    wishes: list[tuple[float, str]] = []
    for part in accept.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            wishes.append((-float(quality), kind))
        except ValueError:
            wishes.append((0.0, kind))
    unwanted = {kind for negative, kind in wishes if negative == 0}  # q=0: anything but this
    for _, kind in sorted((wish for wish in wishes if wish[0]), key=lambda wish: wish[0]):
        for media in MEDIA:
            family = media.partition("/")[0]
            ways = {media, f"{family}/*"}
            if not ways & unwanted and kind in {*ways, "*/*", ""}:
                return media
    raise ApiError(406, f"nothing here is {accept}; accept one of {', '.join(MEDIA)}")


def naming(generation: Generation) -> dict[str, str]:
    """Give the headers of every reply that draws: its generation and the first image's seed."""
    return {"X-Generation-ID": generation.id, "X-Seed": str(generation.spec.seed)}


def json_reply(
    body: BaseModel, headers: dict[str, str] | None = None, status: int = 200
) -> Response:
    """Reply with a model as JSON: it was validated when it was built, and need not be again."""
    return Response(body.model_dump_json(), status, headers, "application/json")
