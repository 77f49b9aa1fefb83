"""Pictures as arrays, without a server: drawn, completed and scored."""

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
from scanline.model.evaluation.pixel_bits import pixel_bits
from scanline.model.network import LinearTransformer
from scanline.model.noise import MAX_SEED, image_seed, random_label
from scanline.model.particles import run_particle_filters
from scanline.model.sampling import resolve

ModelSource = LinearTransformer | Checkpoint | Path | str
Label = int | str | None
Labels = Label | Sequence[Label] | NDArray[np.integer] | torch.Tensor


class GenerationOutput(NamedTuple):
    """Pictures, uint8 ``[n, H, W, C]``, and the bits/dim of each, float64 ``[n]``.

    The bits are those of the plain model with the picture's label, as the decoder computed them.
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
    """Draw ``n`` pictures: uint8 ``[n, height, width, channels]``.

    ``model`` is a network, a checkpoint, a checkpoint's file, or the name of a shipped model.
    Picture j is that of seed ``seed + j``, the same bytes as the server's. ``label`` is a class by
    name or number, one for all or one a picture: None for none, "random" for one chosen by the
    picture's seed. ``temperature`` is 1 for the model as it is and 0 for the likeliest values;
    ``top_p`` and ``guidance`` are the model's own where they are None (guidance 1 without a label).
    So many ``slots`` work at once, two for a guided picture.

    Raises ``ValueError`` on what makes no sense, and ``BackendError`` where a backend cannot run.
    """
    return generate(
        model, n, seed=seed, label=label, temperature=temperature, top_p=top_p,
        guidance=guidance, slots=slots, backend=backend, threads=threads,
    ).images  # fmt: skip


def complete(
    model: ModelSource,
    picture: NDArray[np.uint8],
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
    """Draw the rest of a picture in ``n`` ways: uint8 ``[n, height, width, channels]``.

    ``picture: uint8 [height, width, channels]`` is kept where ``known: bool [height, width]`` is
    true. So many ``particles`` draw each side by side, a slot each, and what is known after a hole
    guides them (model/particles.py). All else is as for ``draw``.
    """
    checkpoint = resolve_model(model)
    config = checkpoint.model.config
    picture, known = np.asarray(picture), np.asarray(known)
    _check_images(config, picture[None])
    if known.shape != picture.shape[:2] or known.dtype != np.bool_:
        raise ValueError(
            f"known must be bool [{config.height}, {config.width}], "
            f"not {known.dtype} {[*known.shape]}"
        )
    return generate(
        checkpoint, n, seed=seed, label=label, temperature=temperature, top_p=top_p,
        guidance=guidance, particles=particles, slots=slots, backend=backend, threads=threads,
        given=np.broadcast_to(picture, (max(n, 0), *picture.shape)), known=known,
    ).images  # fmt: skip


def score(
    model: ModelSource, pictures: NDArray[np.uint8], label: Labels = None
) -> NDArray[np.float64]:
    """Give the exact bits/dim of pictures ``[n, height, width, channels]``: float64 ``[n]``.

    ``label`` is a class by name or number, one for all or one a picture, None for none.
    """
    network, pictures = resolve_model(model).model, np.asarray(pictures)
    _check_images(network.config, pictures)
    names = _label_per_image(label, len(pictures))
    labels = np.array([network.config.class_index(name) for name in names], np.int32)
    if not len(pictures):
        return np.zeros(0)
    bits = pixel_bits(network, _to_canvases(pictures), labels).sum(1, dtype=np.float64)
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
    """Draw as ``draw`` does what is not known of pictures, and tell their bits too.

    ``given: uint8 [n, height, width, channels]`` is kept where ``known: bool [height, width]`` is
    true. ``progress`` is told how many pictures were finished at once. Raises ``ValueError`` where
    one of these comes without the other, or ``given`` are not n.
    """
    checkpoint = resolve_model(model)
    config, own = checkpoint.model.config, checkpoint.defaults
    n, seed = index(n), index(seed)  # whole numbers of any kind
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be 0 to {MAX_SEED}, not {seed}")
    if (given is None) != (known is None):
        raise ValueError("pictures that are given, and what is known of them, come together")
    if given is not None and len(given) != n:
        raise ValueError(f"give a picture for each of the {n}, not {len(given)}")
    seeds = [image_seed(seed, image) for image in range(n)]
    each = _label_per_image(label, n)
    mixed = len({one is None for one in each}) > 1  # a guidance is for those with a label then
    each_params = [
        resolve(config, own, one, top_p, None if mixed and one is None else guidance, particles)
        for one in each
    ]
    labels, scale = np.zeros(n, np.int32), np.ones(n, np.float32)
    for image, params in enumerate(each_params):
        by_seed = params.random_label
        labels[image] = random_label(seeds[image], len(config.classes)) if by_seed else params.label
        scale[image] = params.guidance
    slots_each = max(params.slots for params in each_params)
    if slots < slots_each:
        raise ValueError(f"an image takes {slots_each} slots here, and there are {slots}")
    at_once = min(n, slots // slots_each)
    decoder = create_decoder(
        checkpoint.model, at_once * slots_each, backend, threads, checkpoint.native_precision
    )
    pictures = np.zeros((n, config.height, config.width, config.channels), np.uint8)
    bits = np.zeros(n)
    for first in range(0, n, at_once):
        rows = np.arange(first, min(first + at_once, n))
        inputs = InputBatch.empty(config, len(rows))
        inputs.temperature[:] = temperature
        inputs.top_p[:] = each_params[0].top_p
        inputs.label[:], inputs.guidance[:] = labels[rows], scale[rows]
        leads = particles * (rows - first)
        inputs.twin[:] = np.where(scale[rows] == 1, NO_SLOT, particles * at_once + leads)
        inputs.seed[:] = seeds[first : first + at_once]
        if given is not None and known is not None:
            inputs.canvas[:], inputs.known[:] = _to_canvases(given[rows]), known.reshape(-1)
        decoder.begin(leads, inputs)
        if particles > 1:
            leads = run_particle_filters(decoder, leads, inputs, particles)
        else:
            for _ in range(config.height):  # a row a call, so that Ctrl-C is heard
                decoder.step(leads, config.width)
        pictures[rows] = decoder.canvas[leads].reshape(-1, *pictures.shape[1:])
        bits[rows] = decoder.bits[leads].sum(1, dtype=np.float64) / config.dims
        progress(len(rows))
    return GenerationOutput(pictures, bits)


def resolve_model(model: ModelSource) -> Checkpoint:
    """Give the checkpoint that is meant; a network alone has no facts."""
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
    raise ValueError(f"{model!r} is no name of a shipped model: give Path({model!r})")


def _label_per_image(label: Labels, n: int) -> Sequence[Label]:
    """Give each picture's label as it was named: the one that is for all, or the one of each."""
    each: Sequence[Label]
    if isinstance(label, torch.Tensor):
        label = label.numpy(force=True)
    if isinstance(label, np.ndarray | np.generic):  # which holds -1 for none
        flat = np.asarray(label).reshape(-1).tolist()
        each = [None if one == NO_LABEL else one for one in flat] * (1 if np.ndim(label) else n)
    else:
        several = isinstance(label, Iterable) and not isinstance(label, str)
        each = [*label] if several else [label] * n  # type: ignore[list-item,misc]
    if len(each) != n:
        raise ValueError(f"give one label, or one for each of the {n} pictures, not {len(each)}")
    return each


def _check_images(config: ModelConfig, pictures: NDArray[np.uint8]) -> None:
    shape = (config.height, config.width, config.channels)
    if pictures.shape[1:] != shape or pictures.dtype != np.uint8:
        raise ValueError(
            f"a picture must be uint8 [{', '.join(map(str, shape))}] for this model, "
            f"not {pictures.dtype} {[*pictures.shape[1:]]}"
        )


def _to_canvases(pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Give pictures ``[n, H, W, C]`` as canvases: ``[n, T, C]``."""
    return pictures.reshape(len(pictures), -1, pictures.shape[-1])
