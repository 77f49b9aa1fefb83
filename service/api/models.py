"""Served models: routes and replies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from scanline.kernels.constants import ATTENTION_KINDS
from scanline.model.data.catalog import one_of
from scanline.model.evaluation.records import recorded_bits_per_dim
from scanline.service.api.dependencies import COMMON_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.replies import example
from scanline.service.errors import ERROR_SCHEMA, error_responses
from scanline.service.http.bodies import no_query_params
from scanline.service.http.errors import ApiError
from scanline.service.state.registry import LoadedModel

_MODEL = {
    "id": "mnist", "object": "model", "created": 1700000000, "owned_by": "scanline", "width": 28,
    "height": 28, "channels": 1, "classes": ["0", "1"], "bits_per_dim": 0.61, "steps": 784,
    "order": "pixel", "attention": "linear", "parameters": 1394176, "backend": "native",
    "weights": "0f" * 32, "arithmetic": 1, "slow": False, "slots": 64, "guidance": 2.0,
    "top_p": 1.0,
}  # fmt: skip


class ModelReply(BaseModel):
    """A served model."""

    model_config = example(**_MODEL)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "scanline"
    width: int
    height: int
    channels: int
    classes: list[str]
    bits_per_dim: Annotated[
        float | None, Field(description="On the test set if measured, otherwise in training.")
    ]
    steps: Annotated[int, Field(description="Number of network steps per image.")]
    order: str
    attention: Annotated[
        str, Field(description=f"{one_of(ATTENTION_KINDS)}; lsh-N has N rounds of hashing.")
    ]
    parameters: int
    backend: str
    weights: Annotated[
        str, Field(description="SHA-256 of the config and the weights, as in a recipe.")
    ]
    arithmetic: Annotated[
        int | None,
        Field(
            description="Version of the arithmetic: with the same version and weights, a seed "
            "gives the same bytes on every CPU. Null if they depend on the machine."
        ),
    ]
    slow: Annotated[
        bool,
        Field(
            description="Whether this machine draws many times slower than usual; its log says why."
        ),
    ]
    slots: int
    guidance: Annotated[float, Field(description="Default for images with a label.")]
    top_p: Annotated[float, Field(description="Default.")]

    @classmethod
    def of(cls, name: str, loaded: LoadedModel) -> ModelReply:
        """Describe a loaded model."""
        engine = loaded.engine
        config = engine.config
        return cls(
            id=name,
            created=loaded.created,
            width=config.width,
            height=config.height,
            channels=config.channels,
            classes=list(config.classes),
            bits_per_dim=recorded_bits_per_dim(loaded.checkpoint.facts),
            steps=config.steps,
            order=config.order,
            attention=config.attention,
            parameters=sum(p.numel() for p in loaded.checkpoint.model.parameters()),
            backend=engine.backend,
            weights=loaded.checkpoint.digest,
            arithmetic=engine.arithmetic,
            slow=engine.slow,
            slots=engine.slots,
            guidance=loaded.checkpoint.defaults.guidance,
            top_p=loaded.checkpoint.defaults.top_p,
        )


class ModelList(BaseModel):
    """List of the served models, the default first."""

    model_config = example(object="list", data=[_MODEL], watched=False, max_images=256)

    object: Literal["list"] = "list"
    data: list[ModelReply]
    watched: Annotated[
        bool, Field(description="True if the server loads changed files of models by itself.")
    ]
    max_images: Annotated[int, Field(description="Largest `n` of a request.")]


class FailedModel(BaseModel):
    """A file that was not loaded; what was served before still is."""

    model_config = example(model="mnist", message="runs/mnist.safetensors is damaged")

    model: Annotated[
        str | None, Field(description="Name of the model; null if the folder cannot be read.")
    ]
    message: str


class ReloadReply(BaseModel):
    """Changes of the served models."""

    model_config = example(
        object="reload", added=[], replaced=["mnist"], removed=[],
        failed=[FailedModel.model_config["json_schema_extra"]["examples"][0]],  # type: ignore[index]
    )  # fmt: skip

    object: Literal["reload"] = "reload"
    added: list[str]
    replaced: list[str]
    removed: list[str]
    failed: list[FailedModel]


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
