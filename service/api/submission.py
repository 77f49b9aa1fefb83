"""How a request becomes a generation: counted as its caller's, and drawn once under one key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey, fingerprint
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.queue import Queue
from scanline.service.state import AppState

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A name of your choice for this request: sent again with the same body, it "
        "gives the same generation, for as long as that is kept.",
    ),
]
_Prefer = Annotated[
    str | None,
    Header(
        description="`respond-async`: reply at once with 202 and, as `Location`, the generation's "
        "address; it is drawn though nobody reads it. Means nothing to a stream.",
    ),
]


def _wants_background(request: Request, prefer: _Prefer = None) -> bool:
    """Say whether the `Prefer` headers, one or several, ask not to wait (RFC 7240)."""
    wishes = ",".join(request.headers.getlist("prefer")).split(",")
    return any(wish.partition(";")[0].strip().lower() == "respond-async" for wish in wishes)


Background = Annotated[bool, Depends(_wants_background)]


def request_key(
    request: Request,
    name: str | None,
    engine: EngineProtocol,
    spec: GenerationSpec,
    seed: int | None,
) -> RequestKey | None:
    """Name a request as its caller does; ``seed`` is the one that its body asks for."""
    if name is None:
        return None
    return RequestKey(request.state.caller, name, fingerprint(engine.name, spec, seed))


def submit_generation(
    request: Request,
    server: AppState,
    engine: EngineProtocol,
    spec: GenerationSpec,
    key: RequestKey | None = None,
    *,
    detached: bool = False,
) -> Generation:
    """Submit what is to be drawn, unless it was before under this key, as ``Queue.submit`` does.

    Raises what ``Queue.submit`` and ``InFlightLimiter.check`` do, and ``IdempotencyConflictError``.
    """
    caller = request.state.caller

    def submit() -> tuple[Queue, Generation]:
        server.in_flight.check(caller, spec.n)
        generation = engine.queue.submit(spec, caller=caller, detached=detached)
        server.in_flight.track(caller, generation)
        return engine.queue, generation

    if key is None:
        _, generation = submit()
    else:
        generation = server.idempotency.get_or_submit(key, submit, caller)
        if detached and not generation.detached:  # begun before, by one who wanted to wait
            engine.queue.detach(generation)
    request.state.generation = generation  # for the log
    return generation
