"""Which backend draws: the best that works here, or the one asked for."""

from __future__ import annotations

import importlib.util
import logging

import torch

from scanline.model.decoders.base import BackendError, Decoder
from scanline.model.decoders.memory import InsufficientResourcesError
from scanline.model.decoders.native import NativeDecoder
from scanline.model.decoders.reference import ReferenceDecoder
from scanline.model.network import LinearTransformer

log = logging.getLogger("scanline.decoder")

BACKENDS = ("auto", "native", "reference", "triton")


def create_decoder(
    model: LinearTransformer,
    max_slots: int,
    backend: str = "auto",
    threads: int | None = None,
    precision: str | None = None,
) -> Decoder:
    """Open a backend for a model: ``auto`` takes the best that works here and logs which and why.

    ``threads`` is how many cores ``native`` may use, all by default, and ``precision`` what it
    computes products in, by default what the CPU is best at; other backends have their own, and
    where ``auto`` takes a device the log says that threads are not used. Raises ``ValueError`` on
    an unknown name and on threads for another backend, ``BackendError`` where one asked for by name
    cannot run here, and ``InsufficientResourcesError`` where memory or threads are short for what
    is asked for.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend == "reference":
        if threads is not None:
            raise ValueError(
                "the reference backend has torch's threads: leave threads out, and set "
                "OMP_NUM_THREADS to have fewer"
            )
        return ReferenceDecoder(model, max_slots)
    if backend == "triton" and threads is not None:
        raise ValueError("the triton backend draws on a device: leave threads out")
    if backend == "triton" or (backend == "auto" and torch.cuda.is_available()):
        try:
            decoder = _create_triton(model, max_slots)
        except BackendError as error:
            if backend != "auto" or isinstance(error, InsufficientResourcesError):
                raise  # an operator who asks for too many slots wants fewer, and no slower ones
            log.warning("decoding on the CPU: %s", error)
        else:
            if threads is not None:
                log.info("%d threads are not used: they are for a CPU, without a device", threads)
            return decoder
    try:
        native = NativeDecoder(model, max_slots, threads, precision=precision)
    except BackendError as error:
        if backend != "auto" or isinstance(error, InsufficientResourcesError):
            raise
        whose = "" if threads is None else " and torch's own threads"
        log.warning("decoding with the slow reference backend%s: %s", whose, error)
        return ReferenceDecoder(model, max_slots)
    log.info("decoding with the %s, %d threads", native.variant, native.threads)
    return native


def _create_triton(model: LinearTransformer, max_slots: int) -> Decoder:
    if importlib.util.find_spec("triton") is None:
        raise BackendError(
            "the triton backend needs Triton, which there is for Linux: pip install -e '.[gpu]'"
        )
    from scanline.model.decoders.triton import TritonDecoder

    decoder = TritonDecoder(model, max_slots)
    log.info(
        "decoding with the triton backend, in %s on %s", decoder.precision, decoder.device.where
    )
    return decoder
