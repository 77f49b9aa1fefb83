"""Submission of requests: generation specs, limits per caller, and idempotency keys."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Annotated

from fastapi import Depends, Header, Request

from scanline.model.sampling import SamplingError, SamplingOptions, SamplingParams, resolve
from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.idempotency import RequestKey, fingerprint
from scanline.service.engine.protocol import EngineProtocol
from scanline.service.engine.queue import QueuedGeneration
from scanline.service.http.errors import ApiError
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel


def build_spec(
    app_state: AppState,
    loaded: LoadedModel,
    options: SamplingOptions,
    *,
    n: int = 1,
    seed: int | None = None,
) -> GenerationSpec:
    """Build the spec of ``n`` images without known pixels.

    Args:
        app_state: The other models, which an error about an unknown class suggests.
        loaded: The model that draws them.
        options: The request's sampling options.
        n: The number of images.
        seed: The seed of the first image, random if None.

    Raises:
        ApiError: If an option is invalid, or if an image needs more slots than there are.
    """
    try:
        sampling = resolve(loaded.engine.config, loaded.checkpoint.defaults, options)
    except SamplingError as error:
        message = str(error)
        if error.code == "unknown_class":
            others = [
                name
                for name, other in app_state.models.items()
                if options.label in other.engine.config.classes
            ]
            message += f"; the model {others[0]} has this class" if others else ""
        raise ApiError(400, message, param=error.param, code=error.code) from None
    _check_slots(sampling, loaded.engine.max_slots_per_image)
    if seed is None:
        seed = secrets.randbelow(2**32)  # short, and exact as a JavaScript number
    return GenerationSpec(n=n, seed=seed, sampling=sampling)


def _check_slots(sampling: SamplingParams, available: int) -> None:
    """Raise ``ApiError`` if one image needs more slots than are available."""
    if sampling.slots_per_image <= available:
        return
    if sampling.particles > 1:
        param, advice = "particles", "ask for fewer particles"
        if sampling.guided:
            advice += f", or set guidance to 1 (now {sampling.guidance:g})"
    else:
        param, advice = "guidance", "set guidance to 1"
    raise ApiError(
        400,
        f"an image would need {sampling.slots_per_image} slots (one per particle, twice as many "
        f"with guidance), and this server has {available}: {advice}",
        param=param, code="too_many",
    )  # fmt: skip


def check_capacity(
    request: Request, app_state: AppState, loaded: LoadedModel, n: int, key: str | None = None
) -> None:
    """Refuse images that could not be submitted, before an upload is decoded for them.

    A repeated request needs no room: its idempotency ``key`` belongs to a generation that is kept.

    Raises:
        ApiError: If their number ``n`` is too large.
        RefusedError: If the caller has reached a limit, or the queue is full.
        ClosedError: If the server is shutting down.
    """
    if n > (most := app_state.settings.max_images):
        raise ApiError(
            400, f"n: must be at most {most} images per request", param="n", code="too_many"
        )
    caller = request.state.caller
    if not app_state.idempotency.has_result(caller, key):
        app_state.check_caller(caller, n)
        loaded.engine.queue.check_capacity(n, caller)


IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="A unique name of this request. If it is sent again with the same body, the "
        "reply is the same generation, as long as the server keeps it.",
    ),
]
_Prefer = Annotated[
    str | None,
    Header(
        description="`respond-async`: reply at once with 202 and the generation's URL in "
        "`Location`. The images are drawn even if no client reads them. Has no effect on streams.",
    ),
]


async def _prefers_async(request: Request, prefer: _Prefer = None) -> bool:
    """Return True if any `Prefer` header contains `respond-async` (RFC 7240)."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(one.partition(";")[0].strip().lower() == "respond-async" for one in preferences)


Background = Annotated[bool, Depends(_prefers_async)]


def request_key(
    request: Request,
    name: str | None,
    engine: EngineProtocol,
    spec: GenerationSpec,
    seed: int | None,
) -> RequestKey | None:
    """Build the idempotency key of a request; None if it has none.

    Args:
        request: The HTTP request, for its caller.
        name: The `Idempotency-Key` header.
        engine: The engine that would draw it.
        spec: The images to draw.
        seed: The seed in the body, None if the client left it out.

    Raises:
        ApiError: If there are several such headers.
    """
    if name is None:
        return None
    if len(request.headers.getlist("idempotency-key")) > 1:
        raise ApiError(
            400, "Idempotency-Key: send it once", param="idempotency-key", code="too_many"
        )
    return RequestKey(request.state.caller, name, fingerprint(engine.name, spec, seed))


def submit_generation(
    request: Request,
    app_state: AppState,
    loaded: LoadedModel,
    spec: GenerationSpec,
    key: RequestKey | None = None,
    *,
    detached: bool = False,
) -> QueuedGeneration:
    """Submit a generation, or return the one that was submitted before under the same key.

    Args:
        request: The HTTP request, for its caller and for the access log.
        app_state: The state that holds the limits and the idempotency keys.
        loaded: The model that draws it.
        spec: The images to draw.
        key: The idempotency key, if any.
        detached: Draw the images even if no client reads them.

    Raises:
        RefusedError: If the caller has reached a limit, or the queue is full.
        ClosedError: If the server is shutting down.
        IdempotencyConflictError: If the key belongs to a different request.
    """
    caller = request.state.caller

    def submit() -> QueuedGeneration:
        app_state.check_caller(caller, spec.n)
        queue = loaded.engine.queue
        generation = queue.submit(spec, caller=caller, detached=detached)
        if app_state.settings.png_metadata:
            generation.provenance = loaded.provenance
        app_state.quota.track(caller, generation)
        if app_state.tracing is not None:
            app_state.tracing.trace_generation(generation)
        return QueuedGeneration(queue, generation)

    if key is None:
        submitted = submit()
    else:
        submitted = app_state.idempotency.get_or_submit(key, submit)
        queue, generation = submitted
        if detached and not generation.detached:  # its first request did not ask for background
            queue.detach(generation)
    request.state.log_fields = partial(_log_fields, submitted.generation)
    return submitted


def _log_fields(generation: Generation) -> dict[str, object]:
    """Return a generation's fields of the access log.

    Its outcome is the images' finish reason, "partial" if they differ, or the status of a
    generation that is not finished when its reader leaves.
    """
    outcome: str = generation.status
    if generation.finished:
        reasons = {str(image.finish_reason) for image in generation.images}
        outcome = reasons.pop() if len(reasons) == 1 else "partial"
    return {
        "generation": generation.id,
        "model": generation.model,
        "n": generation.spec.n,
        "outcome": outcome,
    }
