"""Route that verifies a picture: ``POST /v1/verify``."""

from __future__ import annotations

import base64
from functools import partial
from typing import Annotated, BinaryIO, NamedTuple

from fastapi import APIRouter, Depends, Form, Request, Response
from pydantic import BaseModel, Field

from scanline.model.config import ModelConfig
from scanline.model.images import ImageError
from scanline.service.api.dependencies import BODY_DEPENDENCIES, AppStateDep, find_model
from scanline.service.api.replies import example
from scanline.service.api.requests import VerifyForm
from scanline.service.api.submission import build_spec, check_capacity, submit_generation
from scanline.service.api.waiting import wait_for_images
from scanline.service.engine.generation import GenerationSpec
from scanline.service.errors import error_responses
from scanline.service.http.bodies import unique_form_fields
from scanline.service.http.errors import ApiError
from scanline.service.http.forms import FormRoute
from scanline.service.http.responses import json_response
from scanline.service.images import read_masked_image
from scanline.service.recipes.recipe import Recipe
from scanline.service.recipes.verification import (
    KnownPixels,
    Saved,
    Verdict,
    Verification,
    add_given,
    compare,
    no_recipe,
    options_of,
    other_weights,
    read_picture,
    scale_down,
)
from scanline.service.state.app_state import AppState
from scanline.service.state.registry import LoadedModel
from scanline.service.upload_limits import open_upload

router = APIRouter(prefix="/v1", dependencies=BODY_DEPENDENCIES, route_class=FormRoute)


class VerifyReply(BaseModel):
    """Verdict on a picture."""

    model_config = example(
        object="verification", verdict="edited", changed_pixels=3, changes="iVBORw0KGgo…",
        message="Edited: 3 of 784 pixels were changed, the first in row 4, column 12.",
        recipe=Recipe.model_config["json_schema_extra"]["examples"][0],  # type: ignore[index]
    )  # fmt: skip

    object: Annotated[str, Field(json_schema_extra={"enum": ["verification"]})] = "verification"
    verdict: Annotated[str, Field(json_schema_extra={"enum": list(Verdict)})]
    message: Annotated[str, Field(description="The verdict in a sentence.")]
    changed_pixels: Annotated[
        int | None, Field(description="Number of pixels that differ; null if nothing was drawn.")
    ]
    changes: Annotated[
        str | None, Field(description="A PNG in base64 that shows the changed pixels in red.")
    ]
    recipe: Annotated[Recipe | None, Field(description="The recipe in the file.")]


@router.post(
    "/verify", tags=["look inside"], dependencies=[Depends(unique_form_fields())],
    response_model=VerifyReply, responses=error_responses(403, 409, 413, 415, 429, 500, 503),
)  # fmt: skip
async def verify(
    request: Request,
    app_state: AppStateDep,
    form: Annotated[VerifyForm, Form(media_type="multipart/form-data")],
) -> Response:
    """Draw the picture in a PNG again by the recipe in the file, and compare every pixel.

    A completion also needs `source`, the picture that was completed, unless its first rows were
    the known part.
    """
    if form.source is None and (names := form.non_default_fields & {"mask", "known_rows", "fit"}):
        name = min(names)
        raise ApiError(
            400, f"{name}: send source too, the picture that was completed, or leave this out",
            param=name, code="unsupported",
        )  # fmt: skip
    find_model(app_state, None)  # 503 while they load
    read = await app_state.upload_pool.run_for(request, _read, app_state, form.image.file)
    if isinstance(read, Verification):
        verdict = read
    else:
        verdict = await _draw_and_compare(request, app_state, form, read)
    return await app_state.encode_pool.run_for(request, _reply, verdict)


class _Upload(NamedTuple):
    """An uploaded picture, and the model that can draw it."""

    recipe: Recipe
    saved: Saved
    loaded: LoadedModel


def _read(app_state: AppState, file: BinaryIO) -> _Upload | Verification:
    """Read a picture, and find its model; return the verdict if it cannot be drawn again."""
    recipe, pixels = read_picture(file, open_upload)
    if recipe is None:
        return no_recipe()
    loaded = _find(app_state, recipe)
    if loaded is None or loaded.checkpoint.digest != recipe.weights:
        return other_weights(recipe, None if loaded is None else loaded.checkpoint.digest)
    saved = scale_down(recipe, pixels, loaded.engine.config)
    return saved if isinstance(saved, Verification) else _Upload(recipe, saved, loaded)


async def _draw_and_compare(
    request: Request, app_state: AppState, form: VerifyForm, upload: _Upload
) -> Verification:
    """Draw a picture's recipe and compare."""
    recipe, saved, loaded = upload
    config = loaded.engine.config
    spec = _spec(request, app_state, loaded, recipe)
    if recipe.given is not None:
        source = form.source
        read_source = None if source is None else partial(_read_source, source.file, form)
        completion = await app_state.upload_pool.run_for(
            request, add_given, recipe, saved, config, spec, read_source
        )
        if isinstance(completion, Verification):
            return completion
        spec = completion
    elif form.source is not None:
        raise ApiError(
            400, "source: this picture is not a completion; leave it out",
            param="source", code="unsupported",
        )  # fmt: skip
    queue, generation = submit_generation(request, app_state, loaded, spec)
    await wait_for_images(request, queue, generation)
    images = [image.read(0, config.pixels) for image in generation.images]
    here = loaded.provenance
    comparison = (compare, recipe, saved, images, config, here)
    return await app_state.encode_pool.run_for(request, *comparison)


def _find(app_state: AppState, recipe: Recipe) -> LoadedModel | None:
    """Find the model with a recipe's weights, or else with its name."""
    models = app_state.models  # read once, because it may be replaced
    for loaded in models.values():
        if loaded.checkpoint.digest == recipe.weights:
            return loaded
    return models.get(recipe.model)


def _spec(
    request: Request, app_state: AppState, loaded: LoadedModel, recipe: Recipe
) -> GenerationSpec:
    """Build the spec of a recipe; raises ``ApiError`` if this server cannot draw it."""
    try:
        check_capacity(request, app_state, loaded, recipe.n)
        options = options_of(recipe)
        return build_spec(app_state, loaded, options, n=recipe.n, seed=recipe.seed)
    except ApiError as error:
        if error.status_code != 400:
            raise
        raise ApiError(
            400, f"this server cannot draw the recipe in the file: {error.detail}",
            param="image", code=error.code,
        ) from None  # fmt: skip


def _read_source(source: BinaryIO, form: VerifyForm, config: ModelConfig) -> KnownPixels:
    """Read the picture that was completed."""
    mask = form.mask.file if form.mask else None
    try:
        return read_masked_image(source, mask, form.known_rows, form.fit, config)
    except ImageError as error:
        param = "source" if error.param == "image" else error.param
        raise ImageError(str(error), param, error.code) from None


def _reply(verification: Verification) -> Response:
    changed, changes = verification.changed, verification.changes
    reply = VerifyReply(
        verdict=verification.verdict,
        message=verification.message,
        changed_pixels=None if changed is None else int(changed.sum()),
        changes=None if changes is None else base64.b64encode(changes).decode(),
        recipe=verification.recipe,
    )
    return json_response(reply)
