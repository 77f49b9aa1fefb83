"""Python API: draw, complete and score images as numpy arrays, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import index
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.model.checkpoint import Checkpoint, CheckpointError, load_by_name, load_checkpoint
from scanline.model.config import NO_LABEL, ModelConfig
from scanline.model.decoders.base import NO_SLOT, InputBatch
from scanline.model.decoders.factory import create_decoder
from scanline.model.network import LinearTransformer
from scanline.model.noise import MAX_SEED, image_seed
from scanline.model.particles import run_particle_filters
from scanline.model.pixel_bits import pixel_bits
from scanline.model.sampling import SamplingOptions, resolve

ModelSource = LinearTransformer | Checkpoint | Path | str
Label = int | str | None
Labels = Label | Sequence[Label] | NDArray[np.integer] | torch.Tensor


class GenerationOutput(NamedTuple):
    """Generated images and their bits/dim.

    Attributes:
        images: uint8 ``[n, H, W, C]``.
        bits_per_dim: float64 ``[n]``, computed by the decoder for the plain model (temperature 1,
            unguided) with the image's label.
    """

    images: NDArray[np.uint8]
    bits_per_dim: NDArray[np.float64]


def draw(
    model: ModelSource,
    n: int,
    *,
    seed: int = 0,
    label: Labels = None,
    temperature: float = 1.0,
    top_p: float | None = None,
    guidance: float | None = None,
    slots: int = 64,
    backend: str = "auto",
    threads: int | None = None,
) -> NDArray[np.uint8]:
    """Draw ``n`` images: uint8 ``[n, height, width, channels]``.

    Args:
        model: A network, a checkpoint, the path of one, or the name of a shipped model.
        n: The number of images.
        seed: Image j has the seed ``seed + j``, and the same bytes as from the server.
        label: A class by name or number, one for all images or one each. None is no label, and
            "random" a class chosen by the seed of each image.
        temperature: 0 to 2; 1 for the model's distribution, 0 for the most likely values.
        top_p: Share of the probability to keep; None is the model's default.
        guidance: Strength of classifier-free guidance; None is the model's default, or 1 without
            a label.
        slots: The number of slots of the decoder; a guided image takes two.
        backend: One of ``BACKENDS`` in ``model/decoders/factory.py``.
        threads: The number of cores for the ``native`` backend, all by default.

    Raises:
        ValueError: If an argument is invalid.
        BackendError: If the backend cannot run here.
    """
    return generate(
        model, n, seed=seed, label=label, temperature=temperature, top_p=top_p,
        guidance=guidance, slots=slots, backend=backend, threads=threads,
    ).images  # fmt: skip


def complete(
    model: ModelSource,
    image: NDArray[np.uint8],
    known: NDArray[np.bool_],
    n: int = 1,
    *,
    seed: int = 0,
    label: Labels = None,
    temperature: float = 1.0,
    top_p: float | None = None,
    guidance: float | None = None,
    particles: int = 1,
    slots: int = 64,
    backend: str = "auto",
    threads: int | None = None,
) -> NDArray[np.uint8]:
    """Draw the unknown pixels of an image in ``n`` ways: uint8 ``[n, height, width, channels]``.

    Args:
        model: As for ``draw``.
        image: uint8 ``[height, width, channels]``.
        known: bool ``[height, width]``, true for the pixels to keep.
        n: The number of completions.
        seed: As for ``draw``, like the other arguments that are not listed.
        particles: The number of particles per completion, one slot each. With several, known
            pixels after a hole influence it (``model/particles.py``).
    """
    checkpoint = resolve_model(model)
    config = checkpoint.model.config
    image, known = np.asarray(image), np.asarray(known)
    _check_images(config, image)
    if known.shape != image.shape[:2] or known.dtype != np.bool_:
        raise ValueError(
            f"known must be bool [{config.height}, {config.width}], "
            f"not {known.dtype} {[*known.shape]}"
        )
    return generate(
        checkpoint, n, seed=seed, label=label, temperature=temperature, top_p=top_p,
        guidance=guidance, particles=particles, slots=slots, backend=backend, threads=threads,
        given=np.broadcast_to(image, (max(n, 0), *image.shape)), known=known,
    ).images  # fmt: skip


def score(
    model: ModelSource, images: NDArray[np.uint8], label: Labels = None
) -> NDArray[np.float64]:
    """Return the exact bits/dim of images ``[n, height, width, channels]``: float64 ``[n]``.

    ``label`` is a class by name or number, one for all images or one each; None is no label. A
    network is put into evaluation mode.
    """
    network, images = resolve_model(model).model.eval(), np.asarray(images)
    _check_images(network.config, images, "n")
    names = _label_per_image(label, len(images))
    labels = np.array([network.config.class_index(name) for name in names], np.int32)
    if not len(images):
        return np.zeros(0)
    bits = pixel_bits(network, _to_canvases(images), labels).sum(1, dtype=np.float64)
    bits_per_dim: NDArray[np.float64] = bits / network.config.dims
    return bits_per_dim


def generate(
    model: ModelSource,
    n: int,
    *,
    seed: int = 0,
    label: Labels = None,
    temperature: float = 1.0,
    top_p: float | None = None,
    guidance: float | None = None,
    given: NDArray[np.uint8] | None = None,
    known: NDArray[np.bool_] | None = None,
    particles: int = 1,
    slots: int = 64,
    backend: str = "auto",
    threads: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> GenerationOutput:
    """Draw images, or the unknown pixels of given ones, and return their bits/dim too.

    Args:
        model: As for ``draw``, like the other arguments that are not listed.
        n: The number of images.
        given: uint8 ``[n, height, width, channels]``, kept where ``known`` is true.
        known: bool ``[height, width]``, the same for all images.
        particles: The number of particles per image.
        progress: Called with the number of images that finished since the last call.

    Raises:
        ValueError: If an argument is invalid, or ``given`` comes without ``known``.
    """
    checkpoint = resolve_model(model)
    config, defaults = checkpoint.model.config, checkpoint.defaults
    n, seed = index(n), index(seed)  # accept any integer type
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, not {seed}")
    if (given is None) != (known is None):
        raise ValueError("given and known must be passed together")
    if given is not None and len(given) != n:
        raise ValueError(f"given must hold n = {n} images, not {len(given)}")
    seeds = [image_seed(seed, image) for image in range(n)]
    image_labels = _label_per_image(label, n)
    # If only some images have a label, guidance applies to those.
    mixed = len({one is None for one in image_labels}) > 1
    image_params = [
        resolve(
            config,
            defaults,
            SamplingOptions(
                label=one,
                temperature=temperature,
                top_p=top_p,
                guidance=None if mixed and one is None else guidance,
                particles=particles,
            ),
        )
        for one in image_labels
    ]
    slots_per_image = max(params.slots_per_image for params in image_params)
    if slots < slots_per_image:
        raise ValueError(
            f"an image takes {slots_per_image} slots with these options, and slots is {slots}"
        )
    batch = min(n, slots // slots_per_image)
    decoder = create_decoder(
        checkpoint.model, batch * slots_per_image, backend, threads, checkpoint.native_precision
    )
    images = np.zeros((n, config.height, config.width, config.channels), np.uint8)
    bits = np.zeros(n)
    for first in range(0, n, batch):
        rows = np.arange(first, min(first + batch, n))
        inputs = InputBatch.empty(config, len(rows))
        for row, image in enumerate(rows):
            params = image_params[image]
            params.write_to(inputs, row, params.image_label(config, seeds[image]))
        leads = particles * (rows - first)
        guided = [image_params[image].guided for image in rows]
        inputs.twin[:] = np.where(guided, particles * batch + leads, NO_SLOT)
        inputs.seed[:] = seeds[first : first + batch]
        if given is not None and known is not None:
            inputs.canvas[:], inputs.known[:] = _to_canvases(given[rows]), known.reshape(-1)
        decoder.begin(leads, inputs)
        if particles > 1:
            leads = run_particle_filters(decoder, leads, inputs, particles)
        else:
            for _ in range(config.height):  # one image row per call, so that Ctrl-C takes effect
                decoder.step(leads, config.width)
        images[rows] = decoder.canvas[leads].reshape(-1, *images.shape[1:])
        bits[rows] = decoder.bits[leads].sum(1, dtype=np.float64) / config.dims
        progress(len(rows))
    return GenerationOutput(images, bits)


def resolve_model(model: ModelSource) -> Checkpoint:
    """Return the checkpoint of a model source; a bare network gets one without facts."""
    if isinstance(model, Checkpoint):
        return model
    if isinstance(model, LinearTransformer):
        return Checkpoint("network", model)
    if isinstance(model, Path):
        return load_checkpoint(model)
    try:
        return load_by_name(name=model)
    except CheckpointError:
        if not Path(model).is_file():
            raise
    raise ValueError(
        f"{model!r} is not the name of a shipped model; for a file pass Path({model!r})"
    )


def _label_per_image(label: Labels, n: int) -> Sequence[Label]:
    """Return one label per image, repeating a single label; raise if the count is wrong."""
    each: Sequence[Label]
    if isinstance(label, torch.Tensor):
        label = label.numpy(force=True)
    if isinstance(label, np.ndarray | np.generic):  # where -1 means no label
        flat = np.asarray(label).reshape(-1).tolist()
        each = [None if one == NO_LABEL else one for one in flat] * (1 if np.ndim(label) else n)
    else:
        several = isinstance(label, Iterable) and not isinstance(label, str)
        each = [*label] if several else [label] * n  # type: ignore[list-item,misc]
    if len(each) != n:
        raise ValueError(
            f"label must be one class, or one for each of the {n} images; got {len(each)}"
        )
    return each


def _check_images(config: ModelConfig, images: NDArray[np.uint8], *batch: str) -> None:
    """Raise ``ValueError`` unless an array is uint8 ``[*batch, height, width, channels]``."""
    shape = (config.height, config.width, config.channels)
    if images.shape[len(batch) :] != shape or images.dtype != np.uint8:
        raise ValueError(
            f"{'images' if batch else 'image'} must be uint8 [{', '.join(map(str, batch + shape))}]"
            f" for this model, not {images.dtype} {[*images.shape]}"
        )


def _to_canvases(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape images ``[n, H, W, C]`` to canvases ``[n, T, C]``."""
    return images.reshape(len(images), -1, images.shape[-1])
