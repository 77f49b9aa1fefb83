"""Routes that describe the served models."""

from __future__ import annotations

from fastapi import APIRouter

from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.replies import ModelList, ModelReply
from scanline.service.errors import error_responses

router = APIRouter(prefix="/v1/models", dependencies=COMMON_DEPENDENCIES)


@router.get("", tags=["models"], responses=error_responses(503))
async def list_models(app_state: AppStateDep) -> ModelList:
    """List the models, the default first."""
    find_model(app_state, None)  # 503 while they load, because an empty list would mean no models
    return ModelList(data=[ModelReply.of(name, model) for name, model in app_state.models.items()])


@router.get("/{name}", tags=["models"], responses=error_responses(404, 503))
async def get_model(app_state: AppStateDep, name: str) -> ModelReply:
    """Describe one model."""
    return ModelReply.of(name, find_model(app_state, name))
