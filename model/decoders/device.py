"""What the ``triton`` backend runs on: a CUDA device and a stream of it, or the interpreter."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import SubprocessError
from typing import Any

import torch
import triton
from numpy.typing import NDArray
from torch import Tensor
from triton.errors import TritonError

from scanline.kernels.cuda.dependent_launch import supports_dependent_launch
from scanline.model.decoders.base import BackendError
from scanline.model.decoders.memory import InsufficientResourcesError

log = logging.getLogger("scanline.decoder")

SPARE_BYTES = 512 << 20  # what is left free of a device's memory, for graphs and others
# What Triton raises where it finds no driver, compiler or headers, or cannot compile.
_NOT_STARTED = (RuntimeError, OSError, AssertionError, SubprocessError, TritonError)


@contextmanager
def triton_compile_errors() -> Iterator[None]:
    """Raise ``BackendError`` where Triton cannot compile what is started inside the block."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # the device's, not Triton's
        raise
    except _NOT_STARTED as error:
        log.debug("Triton does not start", exc_info=True)
        raise BackendError(
            f"the triton backend's kernels do not start here ({error}); Triton wants a C compiler "
            "and Python's headers too: apt-get install gcc python3-dev"
        ) from error


@contextmanager
def device_errors() -> Iterator[None]:
    """Raise ``InsufficientResourcesError`` where a GPU has too little memory, ``BackendError``
    where it fails."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InsufficientResourcesError(
            f"the GPU has too little memory for this: {error}"
        ) from error
    except torch.AcceleratorError as error:
        if "out of memory" in str(error):
            raise InsufficientResourcesError(
                f"the GPU has too little memory for this: {error}"
            ) from error
        raise BackendError(f"the GPU does not work: {error}") from error


def find_device() -> torch.device:
    """Give the device to run on, the CPU under Triton's interpreter.

    Raises ``BackendError`` where the kernels cannot run.
    """
    if triton.knobs.runtime.interpret:
        return torch.device("cpu")
    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise BackendError(
            "the triton backend needs an NVIDIA GPU and a CUDA build of PyTorch: install one "
            "(https://pytorch.org/get-started), or use the native backend"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    if torch.cuda.get_device_capability(device) < (8, 0):
        name = torch.cuda.get_device_name(device)
        raise BackendError(f"the triton backend needs a GPU of compute capability 8.0, not {name}")
    return device


class Device:
    """A CUDA device with a stream of its own, or the CPU under Triton's interpreter.

    ``where`` is its name, ``capability`` its compute capability and ``kind`` what its results
    depend on; ``overlaps`` says whether kernels may begin before the one before them has ended.
    Raises ``BackendError`` as ``find_device``.
    """

    def __init__(self) -> None:
        self.torch = find_device()
        self.cuda = self.torch.type == "cuda"
        self.where, self.kind, self.overlaps = "Triton's interpreter", "interpreter", False
        self.capability = 0, 0
        self._stream: torch.cuda.Stream | None = None
        if self.cuda:
            self.capability = capability = torch.cuda.get_device_capability(self.torch)
            self.where = torch.cuda.get_device_name(self.torch)
            self.kind = "sm_{}{}".format(*capability)
            self.overlaps = supports_dependent_launch(capability)
            self._stream = torch.cuda.Stream(self.torch)

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a block of threads may have; Triton compiles to ask."""
        if not self.cuda:
            return 0
        with triton_compile_errors():
            asked = triton.runtime.driver.active.utils.get_device_properties(self.torch.index)
        return int(asked["max_shared_mem"])

    @property
    def free(self) -> int | None:
        """Bytes of memory that may be taken; None where only the host's memory bounds them."""
        if not self.cuda:
            return None
        torch.cuda.empty_cache()  # what torch keeps of another stream, it never gives this one
        return torch.cuda.mem_get_info(self.torch)[0] - SPARE_BYTES

    @property
    def lost(self) -> bool:
        """Whether nothing can be done on it any more: some errors leave a process no device."""
        try:
            if self._stream is not None:  # and not the device: a graph may be captured elsewhere
                self._stream.synchronize()
        except RuntimeError:
            return True
        return False

    def follow(self) -> None:
        """Have what is started from now on wait for what the caller has started: its weights."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.torch))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Put what is started inside the block on the stream."""
        with torch.no_grad(), torch.cuda.stream(self._stream):
            yield

    def send(self, array: NDArray[Any]) -> Tensor:
        """Start copying an array, which nobody writes to later, to the device."""
        tensor = torch.from_numpy(array)
        if self._stream is None:
            return tensor
        return tensor.pin_memory().to(self.torch, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """Start copying a tensor to the host; it is there when the stream has come so far."""
        if self._stream is None:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self) -> torch.cuda.Event | None:
        """Give what to wait for until all that was started is done; None where it is."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)  # the host sleeps until then, and leaves its core
        self._stream.record_event(event)
        return event

    def finish(self) -> None:
        """Wait for all that was started."""
        if self._stream is not None:
            self._stream.synchronize()
