"""How a request becomes a generation: counted as its caller's, and drawn once under one key."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Request

from scanline.service.generation import Generation, Spec
from scanline.service.queue import Queue
from scanline.service.repeats import Key, fingerprint
from scanline.service.server import Scanline
from scanline.service.workshop import Workshop

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


def name_request(
    request: Request, name: str | None, engine: Workshop, spec: Spec, seed: int | None
) -> Key | None:
    """Name a request as its caller does; ``seed`` is the one that its body asks for."""
    if name is None:
        return None
    return Key(request.state.caller, name, fingerprint(engine.name, spec, seed))


def begin(
    request: Request,
    server: Scanline,
    engine: Workshop,
    spec: Spec,
    key: Key | None = None,
    *,
    detached: bool = False,
) -> Generation:
    """Submit what is to be drawn, unless it was before under this key, as ``Queue.submit`` does.

    Raises what ``Queue.submit`` and ``Callers.check`` do, and ``OtherRequestError``.
    """
    caller = request.state.caller

    def submit() -> tuple[Queue, Generation]:
        server.callers.check(caller, spec.n)
        generation = engine.queue.submit(spec, caller=caller, detached=detached)
        server.callers.count(caller, generation)
        return engine.queue, generation

    if key is None:
        _, generation = submit()
    else:
        generation = server.repeats.begin(key, submit, caller)
        if detached and not generation.detached:  # begun before, by one who wanted to wait
            engine.queue.detach(generation)
    request.state.generation = generation  # for the log
    return generation
