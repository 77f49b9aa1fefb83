"""Decoder of the ``triton`` backend, over the CUDA kernels of ``kernels/cuda``.

All state lives on the device; the decoder's arrays are copies on the host. ``launch`` queues all
pixels of a call, as CUDA graphs or one fused kernel, and the copy of their results, and returns.
``synchronize`` waits for the results, while the next launch may already run. The number of pixels
that each image advances is known at launch, so only values and bits are copied. Host memory is
pinned, so that copies do not block the host.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import triton
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.cuda import decode_plan
from scanline.kernels.cuda.buffers import allocate_buffers, allocate_weights
from scanline.kernels.cuda.fused.driver import DriverError
from scanline.kernels.cuda.fused.fused_decode import (
    LAUNCH_CONFIGS,
    FusedDecode,
    LaunchConfig,
    unsupported_reason,
)
from scanline.kernels.cuda.launch import StepRunner
from scanline.kernels.cuda.prefill import Prefill, allocate_prefill, supports_prefill
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import BackendError, Decoder, InputBatch, Slots
from scanline.model.decoders.device import Device, device_errors, triton_compile_errors
from scanline.model.decoders.memory import InsufficientMemoryError, check_slot_memory
from scanline.model.decoders.options import COMPILED_OPTIONS, unsupported_option
from scanline.model.decoders.packing import DTYPES, DevicePrecision, decode_config_for, load_weights
from scanline.model.decoders.result_queue import ResultQueue
from scanline.model.network import LinearTransformer

log = logging.getLogger("scanline.decoder")

# Values of each option that this backend supports.
OPTIONS = COMPILED_OPTIONS
# With one image, a prefill takes the host about as long as single steps over this number of pixels
# take the device. With many images a prefill is always faster, because it moves no states.
MIN_PREFILL = 64
UPLOAD_SLOTS = 1024  # slots uploaded at a time, because pinned memory is never released
_INPUTS = tuple(field.name for field in fields(InputBatch))
_DEVICE_DTYPES = {np.dtype(np.bool_): np.uint8, np.dtype(np.uint64): np.int64}  # of the buffers
_STATE = ("kv", "z", "pending", "ring")  # buffers whose second dimension is the slots


class TritonDecoder(Decoder):
    """Decoder on a CUDA device, with weights in bf16 or float32 and the state in float32.

    There are two implementations: one fused kernel for all layers and pixels
    (``kernels/cuda/fused``), and a sequence of Triton kernels per layer. They sum in different
    orders, so their bytes differ. By default, the fused kernel is used if it supports the network
    and no option of the Triton kernels is given.

    Known pixels are prefilled in parallel (``kernels/cuda/prefill.py``) if there are at least
    ``min_prefill`` before the first unknown one. A prefill is in flight like a launch.

    Args:
        model: The network.
        max_slots: Maximum number of images at a time.
        precision: ``bf16`` or ``float32``. The default is bf16, but float32 under Triton's
            interpreter, whose bf16 arithmetic is wrong.
        graphs: Whether to capture CUDA graphs instead of launching each kernel from the host
            (Triton kernels).
        overlap: Whether a kernel may start before the previous one has ended (Triton kernels). The
            default is True if the device supports it.
        fused: True to require the fused kernel, False to use the Triton kernels.
        launch_configs: Configurations of the fused kernel to choose from; all draw the same bytes.
        min_prefill: Least number of leading known pixels to prefill. The bytes depend on it.

    Raises:
        BackendError: There is no supported GPU, or the fused kernel is required but unavailable.
        InsufficientMemoryError: ``max_slots`` do not fit into the device memory.
        InsufficientResourcesError: The device ran out of memory.
        ValueError: An option is invalid, or options contradict each other.
    """

    backend = "triton"
    max_in_flight = 2

    @device_errors()
    def __init__(
        self,
        model: LinearTransformer,
        max_slots: int,
        *,
        precision: DevicePrecision | None = None,
        graphs: bool = True,
        overlap: bool | None = None,
        fused: bool | None = None,
        launch_configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
        min_prefill: int = MIN_PREFILL,
    ) -> None:
        self.device = device = Device()
        self.likelihood_device = device.torch
        self.precision: DevicePrecision = precision or ("bf16" if device.cuda else "float32")
        if self.precision not in DTYPES:
            raise ValueError(f"precision must be bf16 or float32, not {precision!r}")
        triton_options = not graphs or overlap is not None
        if fused and triton_options:
            raise ValueError(
                "graphs and overlap apply to the Triton kernels only and cannot be combined with "
                "fused=True"
            )
        if overlap and not device.overlaps:
            raise BackendError(
                "overlap=True needs compute capability 9.0 and a driver for CUDA 12.3, or newer"
            )
        self.check(model.config, max_slots)
        self._decode_config = decode_config_for(model.config, self.precision)
        prefills = supports_prefill(self._decode_config) and min_prefill <= model.config.pixels
        self.min_prefill = min_prefill if prefills else math.inf
        self._check_memory(max_slots)  # before the host's arrays are allocated
        self.memory = check_slot_memory(model.config, max_slots, 0)  # the state is on the device
        super().__init__(model.config, max_slots)
        self._scheduled = self.positions.copy()  # positions after all launches
        self._arrays = {name: getattr(self.inputs, name) for name in _INPUTS} | {"bits": self.bits}
        self.device.wait_for_caller()
        with self.device.activate():
            self._weights = allocate_weights(self._decode_config, device.torch)
            load_weights(self._weights, model)
            self.buffers = allocate_buffers(self._decode_config, max_slots, device.torch)
            for name, buffer in self.buffers.items():
                buffer.fill_(-1 if name == "slots" else 0)
            self._results = ResultQueue(
                device, self.buffers, self.canvas, self.bits, self.positions
            )
            self._prefill = self._compile_prefill(overlap) if prefills else None
            kernel = self._load_fused(False if triton_options else fused, launch_configs)
            self._upload(np.arange(max_slots, dtype=np.int32))
            self._fused = kernel is not None
            self._run = kernel.run if kernel else self._compile_steps(overlap, graphs).run

    def _load_fused(
        self, fused: bool | None, launch_configs: Sequence[LaunchConfig]
    ) -> FusedDecode | None:
        """Return the fused kernel, or None if it is unavailable or not wanted.

        Raises:
            BackendError: ``fused`` is True and the kernel is unavailable.
        """
        if fused is False or not (fused or self.device.cuda):
            return None
        reason: str | None = "it needs a GPU"
        if self.device.cuda:
            reason = unsupported_reason(self._decode_config)
        if reason is None:
            try:
                return FusedDecode(
                    self._decode_config, self._weights, self.buffers,
                    capability=self.device.capability, shared=self.device.shared,
                    launch_configs=launch_configs,
                )  # fmt: skip
            except DriverError as error:
                reason = str(error)
                if not fused:
                    log.warning("using the Triton kernels, which are slower: %s", reason)
        if fused:
            raise BackendError(f"the fused kernel is unavailable for this network: {reason}")
        return None

    def _compile_prefill(self, overlap: bool | None) -> Prefill:
        """Compile the kernels of a prefill."""
        prefill = Prefill(
            self._decode_config, self._weights, self.buffers, self.max_slots,
            self.device.overlaps if overlap is None else overlap,
        )  # fmt: skip
        if self.device.cuda:
            with triton_compile_errors():
                prefill.compile()
            self.buffers["positions"].zero_()
        return prefill

    def _compile_steps(self, overlap: bool | None, graphs: bool) -> StepRunner:
        """Compile the Triton kernels of a step and capture them in graphs."""
        overlaps, slots = self.device.overlaps if overlap is None else overlap, self.max_slots
        launches = {
            rows: decode_plan.plan(
                self._decode_config, self._weights, self.buffers, overlaps, rows > 1
            )
            for rows in self._plan_rows(slots)
        }
        steps = StepRunner(launches, self._decode_config.steps_per_pixel, slots)
        with triton_compile_errors():
            steps.compile()
        if self.device.cuda and graphs:
            steps.capture()
        return steps

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Return the first option of the config that the kernels do not support."""
        return unsupported_option(config, OPTIONS)

    def _plan_rows(self, slots: int) -> list[int]:
        """Return the smallest number of rows of each plan of a step."""
        wide = self.device.shared >= decode_plan.SHARED_MANY
        return [1, decode_plan.MANY] if wide and slots >= decode_plan.MANY else [1]

    @property
    def broken(self) -> bool:
        """True if the device has failed permanently."""
        return self.device.failed

    @property
    def variant(self) -> str:
        return f"{self.backend} {triton.__version__} {self.device.kind} {self.precision}" + (
            " fused" if self._fused else ""
        )

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Zero the slots' state, upload their inputs and prefill, after the launches in flight."""
        self._scheduled[slots] = lengths
        self._results.drop(slots)
        with self.device.activate():
            index = self.device.upload(slots.astype(np.int64))
            self.buffers["positions"].index_fill_(0, index, 0)
            self.buffers["kv"].index_fill_(1, index, 0)
            self.buffers["z"].index_fill_(1, index, 0)
            self._upload(slots)
            if self._prefill is not None and lengths.any():
                self._run_prefill(self._prefill, slots[lengths > 0], lengths[lengths > 0])

    def _run_prefill(
        self, prefill: Prefill, slots: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> None:
        """Queue the prefill of slots and the copy of its results."""
        for images in prefill.passes(lengths):
            rows, known = slots[images].astype(np.int64), lengths[images].astype(np.int64)
            longest = int(known.max())
            prefill.run(self.device.upload(rows), self.device.upload(known), longest)
        first = np.zeros_like(lengths)
        self._results.push(slots, first, lengths)

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._scheduled[targets] = self._scheduled[sources]
        self._results.drop(targets)
        with self.device.activate():
            origins = self.device.upload(sources.astype(np.int64))
            copies = self.device.upload(targets.astype(np.int64))
            for name in _STATE:
                buffer = self.buffers[name]
                buffer.index_copy_(1, copies, buffer.index_select(1, origins))
            positions = self.buffers["positions"]
            positions.index_copy_(0, copies, positions.index_select(0, origins))
            self._upload(targets)

    def fork(self, sources: Slots, targets: Slots, twins: Slots | None = None) -> None:
        origins = self._valid_slots(np.unique(np.asarray(sources, np.int32)))
        if (self.positions[origins] != self._scheduled[origins]).any():  # a prefill is in flight
            self.synchronize()
        super().fork(sources, targets, twins)

    def reseed(self, slots: Slots, particles: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        super().reseed(slots, particles)
        with self.device.activate():
            self._upload(self._valid_slots(slots), ["particle"])

    def step(self, slots: Slots, n: int) -> None:
        self.launch(slots, n)
        self.synchronize()

    def launch(self, slots: Slots, n: int) -> None:
        rows = self._valid_slots(slots)
        # The kernels expect a twin in the row after its image, and pairs at even rows. So guided
        # images come first.
        rows = rows[np.argsort(self.inputs.twin[rows] < 0, kind="stable")]
        rows = self._valid_slots(np.stack([rows, self.inputs.twin[rows]], 1).ravel())
        T = self.config.pixels
        rows = rows[self._scheduled[rows] < T]
        if n < 1 or not rows.size:
            return
        before = self._scheduled[rows]
        n = min(n, T - int(before.min()))
        row_slots = np.full(len(self.buffers["slots"]), -1, np.int32)
        row_slots[: len(rows)] = rows
        after = np.minimum(before + n, T)
        with self.device.activate():
            self.buffers["slots"].copy_(self.device.upload(row_slots))
            self._run(len(rows), n)
            self._results.push(rows, before, after)
        self._scheduled[rows] = after

    def synchronize(self, remaining: int = 0) -> None:
        self._results.synchronize(remaining)

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        return self._scheduled

    def _upload(self, slots: NDArray[np.int32], names: Sequence[str] = (*_INPUTS, "bits")) -> None:
        """Copy arrays of slots to the device, ``UPLOAD_SLOTS`` slots at a time."""
        for first in range(0, len(slots), UPLOAD_SLOTS):
            if first:
                self.device.synchronize()  # so that pinned memory is reused
            chunk = slots[first : first + UPLOAD_SLOTS]
            index = self.device.upload(chunk.astype(np.int64))
            for name in names:
                array = self._arrays[name][chunk]
                array = array.view(_DEVICE_DTYPES.get(array.dtype, array.dtype))
                self.buffers[name].index_copy_(0, index, self.device.upload(array))

    def _check_memory(self, slots: int) -> None:
        """Raise ``InsufficientMemoryError`` unless all slots fit; log the memory per slot."""
        weight_bytes = _bytes(allocate_weights(self._decode_config, "meta"))
        if self.min_prefill < math.inf:
            weight_bytes += _bytes(allocate_prefill(self._decode_config, slots, "meta"))
        # Scratch is allocated in whole tiles of rows, so take the average over many slots.
        slot_bytes = _bytes(allocate_buffers(self._decode_config, 1024, "meta")) // 1024
        capacity = ""
        if (free := self.device.free) is not None:
            free -= weight_bytes
            max_slots = max(free // slot_bytes, 0)
            if slots > max_slots:
                raise InsufficientMemoryError(
                    f"{slots:,} slots of {slot_bytes / 2**20:.2f} MiB do not fit into the free "
                    f"memory of {self.device.name}",
                    max_slots,
                )
            capacity = f"; {max_slots:,} slots would fit"
        log.info(
            "%d slots of %.2f MiB, and weights and scratch memory of %.1f MiB%s",
            slots, slot_bytes / 2**20, weight_bytes / 2**20, capacity,
        )  # fmt: skip


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
