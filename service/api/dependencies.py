"""Dependencies of the routes: the application state, models, and checks of every request."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from scanline.service.http.bodies import (
    no_query_params,
    unique_json_keys,
    unique_query_params,
)
from scanline.service.http.errors import ApiError, not_ready
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel

# For the documentation only: ApiKeyMiddleware checks the key before it reads the body.
_bearer = HTTPBearer(auto_error=False, description="Required if the server has API keys.")
# Of every route of the API.
COMMON_DEPENDENCIES = [Depends(_bearer), Depends(unique_query_params), Depends(unique_json_keys)]
# Of every route whose options are in the body, except OpenAI's.
BODY_DEPENDENCIES = [*COMMON_DEPENDENCIES, Depends(no_query_params)]


async def _app_state(request: Request) -> AppState:
    app_state: AppState = request.app.state.scanline
    return app_state


AppStateDep = Annotated[AppState, Depends(_app_state)]


def find_model(app_state: AppState, name: str | None) -> LoadedModel:
    """Return a model by name, or the default model for None.

    Raises:
        ApiError: 404 if there is no such model, 503 while the models load.
    """
    models = app_state.models  # read once, because it may be replaced
    if not models:
        raise not_ready("the models are still loading; try again in a moment")
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise ApiError(
            404, f"there is no model {name!r}; the models are: {', '.join(models)}",
            param="model", code="model_not_found",
        )  # fmt: skip
    return models[name]
