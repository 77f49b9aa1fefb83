"""The ``triton`` backend: a decoder over the kernels of ``kernels/cuda``.

Everything a step needs lives on the device; the arrays of the contract are the host's copy.
``launch`` starts all pixels of a call, captured in CUDA graphs, and a copy of what they decide, and
returns; ``synchronize`` waits for it, while the next one may be in flight already. How far each
image gets
is known beforehand, so only values and bits are copied. Host memory is pinned, so that no copy
holds up the host.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from scanline.kernels.cuda import decode_plan as triton_decode
from scanline.kernels.cuda.decode_config import DELAY, allocate, allocate_weights
from scanline.kernels.cuda.fused.driver import CompileError, DriverError
from scanline.kernels.cuda.fused.fused_decode import (
    LAUNCH_CONFIGS,
    FusedDecode,
    LaunchConfig,
    unsupported_reason,
)
from scanline.kernels.cuda.launch import StepRunner
from scanline.model.config import ModelConfig
from scanline.model.decoders.base import (
    BackendError,
    Decoder,
    InputBatch,
    Slots,
    unsupported_option,
)
from scanline.model.decoders.device import Device, device_errors, triton_compile_errors
from scanline.model.decoders.memory import InsufficientMemoryError
from scanline.model.decoders.packing import DTYPES, DevicePrecision, decode_config_for, load_weights
from scanline.model.network import LinearTransformer

log = logging.getLogger("scanline.decoder")

UPLOAD_SLOTS = 1024  # whose inputs are pinned at once: pinned memory is never given back
_INPUTS = tuple(field.name for field in fields(InputBatch))
_SENT_AS = {np.dtype(np.bool_): np.uint8, np.dtype(np.uint64): np.int64}  # torch has few uint64 ops
_STATE = ("kv", "z", "waiting", "ring")  # buffers with the slots second


@dataclass(frozen=True)
class PendingLaunch:
    """What a launch will have drawn: ``new`` counts pixels over all slots, in order of ``slots``.

    ``ages`` are the slots' at launch: one that has been reset since holds another image.
    """

    slots: NDArray[np.int32]
    ages: NDArray[np.int64]
    positions: NDArray[np.int32]  # of the slots, afterwards
    new: NDArray[np.int64]  # [slots, pixels]
    values: Tensor
    bits: Tensor
    done: torch.cuda.Event | None


class TritonDecoder(Decoder):
    """A CUDA device's kernels, with weights in bf16 or float32 and the state in float32.

    Where a network allows it (``kernels/cuda/fused``) all layers are one kernel, which draws pixel
    after pixel; ``fused`` true refuses where it does not, false has Triton's kernels in any case, a
    few for each layer. The two draw the same image by other sums, so their bytes differ.
    ``launch_configs`` are how the one kernel may share rows out, to the same bytes; the
    options below are of Triton's
    kernels alone, which are taken where one of them is given.

    ``precision`` is bf16 by default, float32 under Triton's interpreter, whose bf16 arithmetic is
    wrong. ``delay`` is how many steps of an image share one write of its state: the bytes drawn do
    not depend on it. ``graphs`` false starts every kernel from the host, ``overlap`` false none
    before the one before it has ended; by default they overlap where the device can do it.
    Raises ``BackendError`` where there is no such device, ``InsufficientResourcesError`` where not
    enough of its
    memory is free for ``max_slots``.
    """

    backend = "triton"
    supports_prefill = (
        False  # a step of few images takes as long as one of many: they go along with those
    )
    max_in_flight = 2

    @device_errors()
    def __init__(
        self,
        model: LinearTransformer,
        max_slots: int,
        *,
        precision: DevicePrecision | None = None,
        delay: int = DELAY,
        graphs: bool = True,
        overlap: bool | None = None,
        fused: bool | None = None,
        launch_configs: Sequence[LaunchConfig] = LAUNCH_CONFIGS,
    ) -> None:
        self.device = device = Device()
        self.precision: DevicePrecision = precision or ("bf16" if device.cuda else "float32")
        if self.precision not in DTYPES:
            raise ValueError(f"precision must be bf16 or float32, not {precision!r}")
        if delay < 1:
            raise ValueError(f"delay must be at least 1, not {delay}")
        chosen = not graphs or overlap is not None or delay != DELAY
        if fused and chosen:
            raise ValueError(
                "graphs, overlap and delay are options of Triton's kernels: leave them out, or "
                "fused"
            )
        if overlap and not device.overlaps:
            raise BackendError(
                "kernels overlap on GPUs of compute capability 9.0 with a driver for CUDA 12.3, "
                "or newer: leave overlap out"
            )
        self._decode_config = decode_config_for(model.config, self.precision, delay)
        self._plan_memory(max_slots)  # before the host's arrays are made for nothing
        super().__init__(model.config, max_slots)
        self._flights: list[PendingLaunch] = []  # the oldest first
        self._scheduled = self.positions.copy()  # where images are on the device, in flight or not
        self._ages = np.zeros(max_slots, np.int64)  # how often each slot was reset
        self._arrays = {name: getattr(self.inputs, name) for name in _INPUTS} | {"bits": self.bits}
        self.device.follow()
        with self.device.working():
            self._weights = allocate_weights(self._decode_config, device.torch)
            load_weights(self._weights, model)
            self.buffers = allocate(self._decode_config, max_slots, device.torch)
            for name, buffer in self.buffers.items():
                buffer.fill_(-1 if name == "slots" else 0)
            layers = self._fuse(False if chosen else fused, launch_configs)
            self._upload(np.arange(max_slots, dtype=np.int32))
            self._fused = layers is not None
            self._run = layers.run if layers else self._captured(overlap, graphs).run

    def _fuse(
        self, fused: bool | None, launch_configs: Sequence[LaunchConfig]
    ) -> FusedDecode | None:
        """Give the one kernel of all layers, None where there is none and none is asked for.

        Raises ``BackendError`` where it is asked for.
        """
        if fused is False or not (fused or self.device.cuda):
            return None
        reason = (
            unsupported_reason(self._decode_config) if self.device.cuda else "it needs a device"
        )
        if reason is None:
            try:
                return FusedDecode(
                    self._decode_config, self._weights, self.buffers,
                    capability=self.device.capability, shared=self.device.shared,
                    launch_configs=launch_configs,
                )  # fmt: skip
            except (CompileError, DriverError) as error:
                reason = str(error)
                if not fused:
                    log.warning("drawing with Triton's kernels, slower: %s", reason)
        if fused:
            raise BackendError(f"the layers of this network are not one kernel here: {reason}")
        return None

    def _captured(self, overlap: bool | None, graphs: bool) -> StepRunner:
        """Compile a kernel for each part of a layer, and capture steps of them in graphs."""
        overlaps, slots = self.device.overlaps if overlap is None else overlap, self.max_slots
        launches = {
            rows: triton_decode.plan(
                self._decode_config, self._weights, self.buffers, overlaps, rows > 1
            )
            for rows in self._plans(slots)
        }
        steps = StepRunner(launches, self._decode_config.parts, slots)
        with triton_compile_errors():
            steps.compile()
        if self.device.cuda and graphs:
            steps.capture()
        return steps

    @classmethod
    def unsupported(cls, config: ModelConfig) -> str | None:
        """Name the first option that the kernels do not know."""
        return unsupported_option(config)

    def _plans(self, slots: int) -> list[int]:
        """List from how many rows on each plan of a step is for."""
        wide = self.device.shared >= triton_decode.SHARED_MANY
        return [1, triton_decode.MANY] if wide and slots >= triton_decode.MANY else [1]

    @property
    def broken(self) -> bool:
        """Whether its device is lost."""
        return self.device.lost

    @property
    def variant(self) -> str:
        return f"{self.backend} {triton.__version__} {self.device.kind} {self.precision}" + (
            " fused" if self._fused else ""
        )

    def _reset_state(self, slots: NDArray[np.int32], lengths: NDArray[np.int32]) -> None:
        """Zero the slots' state and send their inputs, behind what is in flight."""
        self._scheduled[slots] = 0
        self._ages[slots] += 1
        with self.device.working():
            index = self.device.send(slots.astype(np.int64))
            self.buffers["positions"].index_fill_(0, index, 0)
            self.buffers["kv"].index_fill_(1, index, 0)
            self.buffers["z"].index_fill_(1, index, 0)
            self._upload(slots)

    def _copy_state(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        self._scheduled[targets] = self._scheduled[sources]
        self._ages[targets] += 1
        with self.device.working():
            origins = self.device.send(sources.astype(np.int64))
            copies = self.device.send(targets.astype(np.int64))
            for name in _STATE:
                buffer = self.buffers[name]
                buffer.index_copy_(1, copies, buffer.index_select(1, origins))
            positions = self.buffers["positions"]
            positions.index_copy_(0, copies, positions.index_select(0, origins))
            self._upload(targets)

    def reseed(self, slots: Slots, particles: Sequence[int] | NDArray[np.integer[Any]]) -> None:
        super().reseed(slots, particles)
        with self.device.working():
            self._upload(self._valid_slots(slots), ["particle"])

    def step(self, slots: Slots, n: int) -> None:
        self.launch(slots, n)
        self.synchronize()

    def launch(self, slots: Slots, n: int) -> None:
        some = self._valid_slots(slots)
        # A twin is the row after its image's. Pairs come before single ones, so that each begins
        # at an even place.
        some = some[np.argsort(self.inputs.twin[some] < 0, kind="stable")]
        some = self._valid_slots(np.stack([some, self.inputs.twin[some]], 1).ravel())
        T = self.config.pixels
        some = some[self._scheduled[some] < T]
        if n < 1 or not some.size:
            return
        before = self._scheduled[some]
        n = min(n, T - int(before.min()))
        listed = np.full(len(self.buffers["slots"]), -1, np.int32)
        listed[: len(some)] = some
        # The n pixels from each image's position on; of one that ends before, the last again.
        pixel = np.minimum(before[:, None] + np.arange(n), T - 1)
        new = some[:, None].astype(np.int64) * T + pixel
        with self.device.working():
            self.buffers["slots"].copy_(self.device.send(listed))
            index = self.device.send(new.ravel())
            self._run(len(some), n)
            values = self.device.fetch(self.buffers["canvas"].flatten(0, 1)[index])
            bits = self.device.fetch(self.buffers["bits"].flatten()[index])
            done = self.device.mark()
        after = self._scheduled[some] = np.minimum(before + n, T)
        self._flights.append(PendingLaunch(some, self._ages[some], after, new, values, bits, done))

    def synchronize(self, remaining: int = 0) -> None:
        while len(self._flights) > remaining:
            flight = self._flights.pop(0)
            if flight.done is not None:
                flight.done.synchronize()
            same = self._ages[flight.slots] == flight.ages
            new = flight.new[same].ravel()
            C = self.config.channels
            values = flight.values.numpy().reshape(*flight.new.shape, C)
            self.canvas.reshape(-1, C)[new] = values[same].reshape(-1, C)
            self.bits.reshape(-1)[new] = flight.bits.numpy().reshape(flight.new.shape)[same].ravel()
            self.positions[flight.slots[same]] = flight.positions[same]

    @property
    def scheduled_positions(self) -> NDArray[np.int32]:
        return self._scheduled

    @property
    def kv(self) -> NDArray[np.float32]:
        """Every slot's sums of eq. 18, what still waits included, a copy: ``[N, L, H, K, V]``.

        In float32 on a device what waits may be an ulp from what the kernel will add, in one FMA.
        """
        return self._sums()[0]

    @property
    def z(self) -> NDArray[np.float32]:
        """Every slot's sums of eq. 19, what still waits included, a copy: ``[N, L, H, K]``."""
        return self._sums()[1]

    def _sums(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        s = self._decode_config
        with self.device.working():
            kv, z, waiting = (self.buffers[name].float().cpu() for name in ("kv", "z", "waiting"))
        steps = torch.from_numpy(np.maximum(self._scheduled * s.parts - s.first, 0))
        for i in range(s.delay - 1):
            there = (steps % s.delay > i).view(1, -1, 1, 1)
            keys, values = (torch.where(there, waiting[..., i, j, :], 0) for j in (0, 1))
            kv = kv + keys.unsqueeze(-1) * values.unsqueeze(-2)
            z = z + keys
        return kv.transpose(0, 1).numpy(), z.transpose(0, 1).numpy()

    def _upload(self, slots: NDArray[np.int32], names: Sequence[str] = (*_INPUTS, "bits")) -> None:
        """Copy slots' arrays to the device, so many slots at a time that little is pinned."""
        for first in range(0, len(slots), UPLOAD_SLOTS):
            if first:
                self.device.finish()  # what was pinned for those before is free again
            some = slots[first : first + UPLOAD_SLOTS]
            index = self.device.send(some.astype(np.int64))
            for name in names:
                array = self._arrays[name][some]
                sent = self.device.send(array.view(_SENT_AS.get(array.dtype, array.dtype)))
                self.buffers[name].index_copy_(0, index, sent)

    def _plan_memory(self, slots: int) -> None:
        """Raise ``InsufficientMemoryError`` unless all slots fit; log what one takes."""
        fixed = _bytes(allocate_weights(self._decode_config, "meta"))
        # Scratch comes in whole tiles of rows, so a slot's share is taken of many.
        each = _bytes(allocate(self._decode_config, 1024, "meta")) // 1024
        room = ""
        if (free := self.device.free) is not None:
            free -= fixed
            if slots * each > free:
                most = max(free // each, 0)
                raise InsufficientMemoryError(
                    f"{slots:,} slots of {each / 2**20:.2f} MiB do not fit into the memory that "
                    f"{self.device.where} has free; {most:,} slots would",
                    most,
                )
            room = f"; {free // each:,} slots would fit"
        log.info(
            "%d slots of %.2f MiB and weights of %.1f MiB%s",
            slots, each / 2**20, fixed / 2**20, room,
        )  # fmt: skip


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
