"""Generation specs: the options of a request, resolved with the model's defaults."""

from __future__ import annotations

import secrets

from scanline.model.sampling import SamplingError, SamplingOptions, SamplingParams, resolve
from scanline.service.engine.generation import GenerationSpec
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
    if sampling.slots <= available:
        return
    if sampling.particles > 1:
        param, advice = "particles", "ask for fewer particles"
        if sampling.guided:
            advice += f", or set guidance to 1 (now {sampling.guidance:g})"
    else:
        param, advice = "guidance", "set guidance to 1"
    raise ApiError(
        400,
        f"an image would need {sampling.slots} slots (one per particle, twice as many with "
        f"guidance), and this server has {available}: {advice}",
        param=param, code="too_many",
    )  # fmt: skip
