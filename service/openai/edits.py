"""Bodies of OpenAI edits: forms or JSON with one picture, a mask, and options."""

from __future__ import annotations

import base64
import binascii
import io
import json
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from scanline.model.config import ModelConfig
from scanline.model.images import ImageError
from scanline.service.http.bodies import describe_json_error, media_type, wrong_media_type
from scanline.service.http.errors import FILE_REQUIRED, ApiError
from scanline.service.images import MAX_SIDE, to_canvas, transparent
from scanline.service.openai.rendering import Frame, frame_for
from scanline.service.openai.requests import EditsRequest
from scanline.service.upload_limits import open_upload

# Options without an effect that a form may contain as a file, or as fields such as svg[model].
_STRUCTURED_OPTIONS = ("markup", "svg")


@dataclass(frozen=True)
class Edit:
    """Parsed body of an edit, with encoded pictures."""

    options: EditsRequest
    image: BinaryIO
    mask: BinaryIO | None


async def read_edit(request: Request) -> Edit:
    """Parse an edit from a form, or from JSON with data URLs; raises ``ApiError``."""
    kind = media_type(request.headers)
    if kind == "multipart/form-data":
        fields, images, masks = await _read_form(request)
    elif kind == "application/json":
        fields, images, masks = await _read_json(request)
    else:
        raise wrong_media_type("send multipart/form-data, or application/json with data URLs")
    try:
        options = EditsRequest.model_validate(fields, strict=kind == "application/json")
    except ValidationError as error:
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in error.errors()]
        ) from None
    if len(images) != 1:
        name = "image" if kind == "multipart/form-data" else "images"
        code = "too_many" if images else "missing"
        message = f"{name}: send one picture; got {len(images)}"
        raise ApiError(400, message, param=name, code=code)
    if len(masks) > 1:
        raise ApiError(400, "mask: send at most one", param="mask", code="too_many")
    return Edit(options, images[0], masks[0] if masks else None)


ParsedBody = tuple[dict[str, Any], list[BinaryIO], list[BinaryIO]]  # fields, images and masks


async def _read_form(request: Request) -> ParsedBody:
    fields: dict[str, Any] = {}
    images: list[BinaryIO] = []
    masks: list[BinaryIO] = []
    async with request.form() as form:
        for name, value in form.multi_items():
            if (value == "" and name != "prompt") or _is_empty_file(value):
                continue  # an empty field counts as left out, as in all forms
            if name in ("image", "image[]", "mask"):
                if not isinstance(value, UploadFile):
                    message = f"{name}: {FILE_REQUIRED.format(name)}"
                    raise ApiError(400, message, param=name, code="invalid_image")
                content = io.BytesIO(
                    await value.read()
                )  # copied, because the form closes its files
                (masks if name == "mask" else images).append(content)
            elif (option := name.partition("[")[0]) in _STRUCTURED_OPTIONS:
                fields[option] = name
            elif isinstance(value, UploadFile) and name not in EditsRequest.model_fields:
                fields[name] = ""  # to be refused as an unknown field
            elif isinstance(value, UploadFile) or name in fields:
                raise ApiError(
                    400, f"{name}: must be a single text field", param=name, code="invalid_value"
                )
            else:
                fields[name] = value
    return fields, images, masks


def _is_empty_file(value: str | UploadFile) -> bool:
    """Return True for a file input without a file, as browsers send it."""
    return isinstance(value, UploadFile) and not value.filename and not value.size


async def _read_json(request: Request) -> ParsedBody:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, describe_json_error(error), code="json_invalid") from None
    if not isinstance(body, dict):
        raise ApiError(400, "send a JSON object", code="json_invalid")
    images, mask = body.pop("images", []), body.pop("mask", None)
    if not isinstance(images, list):
        raise ApiError(400, "images: must be a list", param="images", code="invalid_image")
    masks = [] if mask is None else [_decode_data_url(mask, "mask")]
    return body, [_decode_data_url(image, "images") for image in images], masks


def _decode_data_url(source: object, param: str) -> BinaryIO:
    given = {k: v for k, v in source.items() if v is not None} if isinstance(source, dict) else {}
    url = given.get("image_url") if len(given) == 1 else None
    if isinstance(url, str) and url.startswith("data:"):
        header, _, data = url.partition(",")
        if header.endswith(";base64"):
            try:
                return io.BytesIO(base64.b64decode(data, validate=True))
            except (binascii.Error, ValueError):
                pass
    raise ApiError(
        400,
        f'{param}: must be {{"image_url": "data:image/png;base64,…"}}; other URLs and file ids are '
        "not supported",
        param=param,
        code="invalid_image",
    )


class ReadEdit(NamedTuple):
    """Decoded picture and mask of an edit.

    Attributes:
        canvas: The values, uint8 ``[T, C]``.
        known: Which pixels are known, bool ``[T]``.
        warnings: A warning if the picture has a border, which is not used.
    """

    canvas: NDArray[np.uint8]
    known: NDArray[np.bool_]
    warnings: list[str]


def read_canvas(edit: Edit, config: ModelConfig) -> ReadEdit:
    """Decode an edit's picture and mask at the model's size.

    A larger picture, such as an enlarged reply of this API, is scaled down, without its border
    (``frame_for``). Then a pixel is drawn if any part of it is transparent.

    Raises:
        ImageError: If the picture or the mask is invalid, or nothing is transparent.
    """
    W, H = config.width, config.height

    def find_frame(width: int, height: int) -> Frame:
        if frame := frame_for(width, height, config):
            return frame
        raise ImageError(
            f"the picture is {width} × {height}, and the model's size is {W} × {H}: "
            f"send at least that size, and at most {MAX_SIDE} pixels per side"
        )

    whole = open_upload(edit.image, "image", find_frame)
    frame = find_frame(*whole.size)
    factor, box = frame.scale, frame.box(config)
    picture = whole.crop(box)

    def check_mask(width: int, height: int) -> None:
        if (width, height) != whole.size:
            raise ImageError(
                f"the mask is {width} × {height}; its size must be the picture's, "
                f"{whole.width} × {whole.height}",
                "mask",
            )

    mask = whole if edit.mask is None else open_upload(edit.mask, "mask", check_mask)
    check_mask(*mask.size)
    mask = mask.crop(box)
    unknown = transparent(mask).reshape(H, factor, W, factor).any((1, 3))
    if not unknown.any():
        raise ImageError(
            "nothing is transparent: send a mask, or a picture, that is transparent (alpha 0) in "
            "the part to draw",
            "mask",
        )
    small = picture if factor == 1 else picture.resize((W, H), Image.Resampling.BOX)
    warnings = []
    if picture.size != whole.size:
        warnings.append(
            f"image: only the middle of the picture is used, {picture.width}x{picture.height} of "
            f"{whole.width}x{whole.height}, because the model's size is {W}x{H}"
        )
    canvas = to_canvas(small, config, "exact")
    return ReadEdit(canvas, ~unknown.reshape(-1), warnings)
