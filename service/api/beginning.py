"""How a request becomes a generation: at once, in the background, or as the one it was before."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Request

from scanline.service.engine import Engine
from scanline.service.generation import Generation, Spec
from scanline.service.http.errors import ApiError
from scanline.service.repeats import OtherRequestError, fingerprint
from scanline.service.server import Scanline

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A name of your choice for this request: sent again with the same body, it "
        "gives the same generation, for as long as that is kept.",
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        description="`respond-async`: reply at once with 202 and, as `Location`, the generation's "
        "address; it is drawn though nobody reads it. Means nothing to a stream.",
    ),
]


def wants_background(prefer: str | None) -> bool:
    """Say whether a `Prefer` header asks not to wait (RFC 7240)."""
    wishes = (prefer or "").split(",")
    return any(wish.partition(";")[0].strip().lower() == "respond-async" for wish in wishes)


def begin(
    request: Request,
    server: Scanline,
    engine: Engine,
    spec: Spec,
    seed: int | None,
    key: str | None,
    *,
    detached: bool = False,
) -> Generation:
    """Submit what is to be drawn, unless it was before under this key of this caller's.

    ``seed`` is the one that the body asks for. Raises what ``Queue.submit`` does, and ``ApiError``
    where the key came with another request.
    """
    if key is None:
        return engine.queue.submit(spec, detached=detached)
    caller = getattr(request.state, "caller", "")
    mark = fingerprint(engine.name, spec, seed)
    try:
        return server.repeats.submit(engine.queue, spec, (caller, key), mark, detached=detached)
    except OtherRequestError:
        raise ApiError(
            422,
            "Idempotency-Key: this key came before with another request; choose a new key for a "
            "new request, or repeat the old one as it was",
            param="idempotency-key",
            code="idempotency_key_reused",
        ) from None
