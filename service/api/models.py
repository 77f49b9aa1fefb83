"""Routes that describe the served models."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import APIRouter, Depends, Request

from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.model_replies import FailedModel, ModelList, ModelReply, ReloadReply
from scanline.service.errors import ERROR_SCHEMA, error_responses
from scanline.service.http.bodies import no_query_params
from scanline.service.http.errors import ApiError

router = APIRouter(prefix="/v1/models", dependencies=COMMON_DEPENDENCIES)


@router.get("", tags=["models"], responses=error_responses(503))
async def list_models(app_state: AppStateDep) -> ModelList:
    """List the models, the default first."""
    find_model(app_state, None)  # 503 while they load, because an empty list would mean no models
    models = [ModelReply.of(name, model) for name, model in app_state.models.items()]
    watched = app_state.reloader is not None and app_state.settings.watches_weights
    return ModelList(data=models, watched=watched, max_images=app_state.settings.max_images)


# Before the next route, whose path would match too.
@router.post(
    "/reload", tags=["operations"], dependencies=[Depends(no_query_params)],
    responses=error_responses(403, 429, 503)
    | {409: ERROR_SCHEMA | {"description": "Only a restart can load other models here."}},
)  # fmt: skip
async def reload_models(request: Request, app_state: AppStateDep) -> ReloadReply:
    """Load the models of new and changed files, and stop serving those whose files are gone.

    Running requests finish with the weights that they began with. A file that cannot be loaded
    changes nothing.
    """
    find_model(app_state, None)  # 503 while they load for the first time
    if app_state.reloader is None:
        raise ApiError(
            409, "the models of a cluster are not reloaded; start the frontend again",
            code="not_reloadable",
        )  # fmt: skip
    result = await app_state.reload_pool.run_for(request, app_state.reloader.reload)
    folder = app_state.settings.weights
    failed = [
        FailedModel(model=name or None, message=_without_path(reason, folder))
        for name, reason in result.failed.items()
    ]
    return ReloadReply(
        added=result.added, replaced=result.replaced, removed=result.removed, failed=failed
    )


def _without_path(reason: str, folder: Path) -> str:
    """Return a reason for clients, with the files' names only. The log names their folder."""
    return reason.replace(f"{folder}{os.sep}", "").replace(str(folder), folder.name)


@router.get("/{name}", tags=["models"], responses=error_responses(404, 503))
async def get_model(app_state: AppStateDep, name: str) -> ModelReply:
    """Describe one model."""
    return ModelReply.of(name, find_model(app_state, name))
