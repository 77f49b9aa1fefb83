"""What a request names: the server it came to, a model, a class, a seed."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from scanline.model.sampling import SamplingError, SamplingParams, resolve
from scanline.service.http.bodies import known_query_params, unique_json_keys
from scanline.service.http.errors import ApiError, not_ready
from scanline.service.state import AppState, LoadedModel

# For the documentation alone: ApiKeyMiddleware has checked the key before any body was read.
_bearer = HTTPBearer(auto_error=False, description="Only where the server has an API key set.")
COMMON_DEPENDENCIES = [
    Depends(_bearer),
    Depends(known_query_params),
    Depends(unique_json_keys),
]  # of the API


async def _scanline(request: Request) -> AppState:
    app_state: AppState = request.app.state.scanline
    return app_state


Server = Annotated[AppState, Depends(_scanline)]


def find_model(server: AppState, name: str | None) -> LoadedModel:
    """Find a model by name, the first for None; 404 where there is none, 503 while loading."""
    if not server.models:
        raise not_ready("the models are still loading; try again in a moment")
    if name is None:
        return next(iter(server.models.values()))
    if name not in server.models:
        there = ", ".join(server.models)
        raise ApiError(
            404, f"there is no model {name!r} here; there are: {there}",
            param="model", code="model_not_found",
        )  # fmt: skip
    return server.models[name]


def find_model_with_capacity(
    request: Request, server: AppState, name: str | None, n: int, key: str | None = None
) -> LoadedModel:
    """Find a model by name, and refuse early what its engine has no room for.

    What came before under the request's idempotency ``key``, and is kept, needs none.
    """
    loaded = find_model(server, name)
    if n > (most := server.settings.max_images):
        raise ApiError(400, f"n: at most {most} images a request", param="n", code="too_many")
    if not server.idempotency.has_result(request.state.caller, key):
        loaded.engine.queue.check_capacity(n, request.state.caller)
    return loaded


def choose_seed(seed: int | None) -> int:
    """Take the caller's seed, or a random one."""
    # Below 2³², so that a random seed is short and exact in JavaScript too.
    return secrets.randbelow(2**32) if seed is None else seed


def resolve_sampling(
    server: AppState,
    loaded: LoadedModel,
    label: int | str | None,
    top_p: float | None,
    guidance: float | None,
    particles: int = 1,
) -> SamplingParams:
    """Resolve the sampling parameters of a request: 400 where they cannot be."""
    try:
        params = resolve(
            loaded.engine.config, loaded.checkpoint.defaults, label, top_p, guidance, particles
        )
    except SamplingError as error:
        message = str(error)
        if error.code == "unknown_class":
            others = [n for n, one in server.models.items() if label in one.engine.config.classes]
            message += f"; {others[0]} has it: name that as the model" if others else ""
        raise ApiError(400, message, param=error.param, code=error.code) from None
    if params.slots > (most := loaded.engine.max_slots_per_image):
        param = "particles" if particles > 1 else "guidance"
        less = "ask for fewer particles" if particles > 1 else "set guidance to 1"
        if particles > 1 and params.guidance != 1:
            less += f", or set guidance to 1 (here it is {params.guidance:g})"
        raise ApiError(
            400,
            f"an image would take {params.slots} slots (one a particle, twice that with guidance) "
            f"and this server has {most}: {less}",
            param=param, code="too_many",
        )  # fmt: skip
    return params
