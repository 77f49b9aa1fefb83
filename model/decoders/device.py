"""Device of the ``triton`` backend: a CUDA device with its own stream, or the interpreter."""

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

SPARE_BYTES = 512 << 20  # device memory to leave free, for graphs and other processes
# Triton's errors if it finds no driver, compiler or headers, or cannot compile.
_TRITON_ERRORS = (RuntimeError, OSError, AssertionError, SubprocessError, TritonError)


@contextmanager
def triton_compile_errors() -> Iterator[None]:
    """Convert Triton's errors inside the block to ``BackendError``."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # not Triton's
        raise
    except _TRITON_ERRORS as error:
        log.debug("Triton does not work", exc_info=True)
        raise BackendError(
            f"the triton backend's kernels do not compile or start ({error}); Triton needs a C "
            "compiler and Python's headers: apt-get install gcc python3-dev"
        ) from error


@contextmanager
def device_errors() -> Iterator[None]:
    """Convert GPU errors inside the block.

    Raises:
        InsufficientResourcesError: The GPU has too little memory.
        BackendError: Any other error of the GPU.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InsufficientResourcesError(f"not enough GPU memory: {error}") from error
    except torch.AcceleratorError as error:
        if "out of memory" in str(error):
            raise InsufficientResourcesError(f"not enough GPU memory: {error}") from error
        raise BackendError(f"the GPU failed: {error}") from error


def find_device() -> torch.device:
    """Return the device to run on: the current CUDA device, or the CPU under the interpreter.

    Raises:
        BackendError: The kernels cannot run on this machine.
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
        raise BackendError(f"the triton backend needs compute capability 8.0 or higher: {name}")
    return device


class Device:
    """A CUDA device with its own stream, or the CPU under Triton's interpreter.

    Attributes:
        torch: The PyTorch device.
        cuda: Whether it is a CUDA device.
        name: Name of the device.
        kind: Identifier of the devices that compute the same bytes.
        overlaps: Whether a kernel may start before the previous one has ended.
        capability: Compute capability; (0, 0) for the interpreter.

    Raises:
        BackendError: See ``find_device``.
    """

    def __init__(self) -> None:
        self.torch = find_device()
        self.cuda = self.torch.type == "cuda"
        self.name, self.kind, self.overlaps = "Triton's interpreter", "interpreter", False
        self.capability = 0, 0
        self._stream: torch.cuda.Stream | None = None
        if self.cuda:
            self.capability = capability = torch.cuda.get_device_capability(self.torch)
            self.name = torch.cuda.get_device_name(self.torch)
            self.kind = "sm_{}{}".format(*capability)
            self.overlaps = supports_dependent_launch(capability)
            self._stream = torch.cuda.Stream(self.torch)

    @property
    def shared(self) -> int:
        """Maximum shared memory per block in bytes; Triton compiles a module to query it."""
        if not self.cuda:
            return 0
        with triton_compile_errors():
            properties = triton.runtime.driver.active.utils.get_device_properties(self.torch.index)
        return int(properties["max_shared_mem"])

    @property
    def free(self) -> int | None:
        """Bytes of device memory that may be allocated; None for the interpreter."""
        if not self.cuda:
            return None
        torch.cuda.empty_cache()  # memory cached for another stream is not reused for this one
        return torch.cuda.mem_get_info(self.torch)[0] - SPARE_BYTES

    @property
    def failed(self) -> bool:
        """True if the device cannot be used any more: some CUDA errors are permanent."""
        try:
            if self._stream is not None:  # not the device: another thread may capture a graph
                self._stream.synchronize()
        except RuntimeError:
            return True
        return False

    def wait_for_caller(self) -> None:
        """Make later work wait for work on the caller's stream, such as copies of weights."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.torch))

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Run the operations inside the block on the stream, without gradients."""
        with torch.no_grad(), torch.cuda.stream(self._stream):
            yield

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Start a copy of an array to the device; the array must not be modified later."""
        tensor = torch.from_numpy(array)
        if self._stream is None:
            return tensor
        return tensor.pin_memory().to(self.torch, non_blocking=True)

    def download(self, tensor: Tensor) -> Tensor:
        """Start a copy of a tensor to the host; it is complete when the stream reaches it."""
        if self._stream is None:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def record_event(self) -> torch.cuda.Event | None:
        """Record an event after all work so far; None for the interpreter, which is synchronous."""
        if self._stream is None:
            return None
        event = torch.cuda.Event(blocking=True)  # a waiting host thread sleeps
        self._stream.record_event(event)
        return event

    def synchronize(self) -> None:
        """Wait for all work on the stream."""
        if self._stream is not None:
            self._stream.synchronize()
