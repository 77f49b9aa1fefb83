"""Choice and creation of the decoder backend."""

from __future__ import annotations

import importlib.util
import logging

import torch

from scanline.kernels.native.abi import precision_of
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
    """Create a decoder for a model.

    Args:
        model: The network to draw with.
        max_slots: The number of images in flight.
        backend: One of ``BACKENDS``. ``auto`` takes the fastest that works here and logs which
            one and why.
        threads: The number of cores for ``native``, all by default. If ``auto`` chooses a device,
            the log says that the threads are not used.
        precision: The format of the products of ``native``, by default ``int16``. The other
            backends ignore it, because they have their own.

    Raises:
        ValueError: If the backend, the precision or SCANLINE_ISA is unknown, or ``threads`` is
            given for another backend.
        BackendError: If the backend cannot run here.
        InsufficientResourcesError: If memory or threads do not suffice.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if precision is not None:
        precision_of(precision)
    if backend == "reference":
        if threads is not None:
            raise ValueError(
                "the reference backend uses torch's threads: leave threads out, and set "
                "OMP_NUM_THREADS to limit them"
            )
        return ReferenceDecoder(model, max_slots)
    if backend == "triton" and threads is not None:
        raise ValueError("the triton backend runs on a GPU: leave threads out")
    if backend == "triton" or (backend == "auto" and torch.cuda.is_available()):
        try:
            decoder = _create_triton(model, max_slots)
        except BackendError as error:
            if backend != "auto" or isinstance(error, InsufficientResourcesError):
                raise  # too many slots: ask for fewer instead of falling back to a slower backend
            log.warning("decoding on the CPU: %s", error)
        else:
            if threads is not None:
                log.info("ignoring threads=%d, which only the CPU backend uses", threads)
            return decoder
    try:
        native = NativeDecoder(model, max_slots, threads, precision=precision)
    except BackendError as error:
        if backend != "auto" or isinstance(error, InsufficientResourcesError):
            raise
        own_threads = "" if threads is None else ", with torch's own number of threads"
        log.warning("decoding with the slow reference backend%s: %s", own_threads, error)
        reference = ReferenceDecoder(model, max_slots)
        reference.slow = True
        return reference
    log.info("decoding with %s on %s, %d threads", native.variant, native.isa, native.threads)
    if native.isa == "portable":
        native.slow = True
        log.warning(
            "decoding is slow, because this CPU has none of the instruction sets that the native "
            "backend is optimised for; the same seeds give the same bytes"
        )
    return native


def _create_triton(model: LinearTransformer, max_slots: int) -> Decoder:
    if importlib.util.find_spec("triton") is None:
        raise BackendError(
            "the triton backend needs Triton (Linux only): pip install 'scanline-rnn[gpu]'"
        )
    from scanline.model.decoders.triton import TritonDecoder

    decoder = TritonDecoder(model, max_slots)
    log.info("decoding with %s on %s", decoder.variant, decoder.device.name)
    return decoder
