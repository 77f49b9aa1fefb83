"""Pipeline of decoder steps and prefills: launched in order, synchronized and measured in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.decoders.base import NO_SLOT, Decoder, InputBatch
from scanline.service.engine.generation import Clock
from scanline.service.engine.progress import Observer
from scanline.service.engine.queue import Queue
from scanline.service.engine.time_share import TimeShare


class _Step(NamedTuple):
    """A launched step.

    Attributes:
        small: Whether it advances the small requests.
        calls: Number of decoder launches.
        slots: Number of slots.
        max_pixels: Most pixels that one slot draws.
        pixels: Pixels that all slots draw together.
        twin_pixels: Pixels that their twins draw in addition.
        began: Start of the launch.
        launch_seconds: Duration of the launch.
    """

    small: bool
    calls: int
    slots: int
    max_pixels: int
    pixels: int
    twin_pixels: int
    began: float
    launch_seconds: float


class _Prefill(NamedTuple):
    """A prefill, which a device computes between two steps.

    Attributes:
        pixels: Pixels that it prefills.
        small_pixels: How many of them belong to small requests.
        began: Start of the launch.
        done: Called once it is complete.
    """

    pixels: int
    small_pixels: int
    began: float
    done: Callable[[], None]


class StepPipeline:
    """Steps and prefills in flight, and the timing of each. Used by the engine thread only."""

    def __init__(
        self, decoder: Decoder, queue: Queue, observer: Observer | None, clock: Clock
    ) -> None:
        self.time_share = TimeShare()
        self._decoder, self._queue = decoder, queue
        self._observer, self._clock = observer, clock
        self._in_flight: deque[_Step | _Prefill] = deque()  # the oldest first
        self._synchronized_at = 0.0  # when the last step was synchronized

    @property
    def in_flight(self) -> int:
        """Number of steps in flight."""
        return sum(isinstance(one, _Step) for one in self._in_flight)

    def begin(
        self, slots: Sequence[int], inputs: InputBatch, small: Sequence[bool],
        done: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Begin images in ``slots``, and charge the prefill to their groups.

        Args:
            slots: Lead slots.
            inputs: One row per slot.
            small: Per slot, whether the image belongs to a small request.
            done: Called once all known pixels are prefilled.
        """
        began = self._clock()
        self._decoder.begin(slots, inputs)
        prefilled = self._decoder.prefill_lengths(inputs)
        prefilled = prefilled * np.where(inputs.twin == NO_SLOT, 1, 2)
        if not (pixels := int(prefilled.sum())):
            done()
            return
        prefill = _Prefill(pixels, int(prefilled[np.array(small)].sum()), began, done)
        if self._decoder.max_in_flight > 1:
            self._in_flight.append(prefill)
        else:
            self._charge_prefill(prefill, self._clock() - began)

    def launch(self, calls: Sequence[tuple[NDArray[np.int32], int]], *, small: bool) -> None:
        """Launch a step.

        Args:
            calls: Per decoder launch, the slots (int32) and the most pixels to draw in each.
            small: Whether the step advances the small requests.
        """
        began = self._clock()
        calls = [(slots, pixels) for slots, pixels in calls if len(slots)]
        longest = drawn = twin_pixels = 0
        for slots, max_pixels in calls:
            left = self._decoder.config.pixels - self._decoder.scheduled_positions[slots]
            pixels = np.minimum(left, max_pixels)
            longest = max(longest, int(pixels.max()))
            drawn += int(pixels.sum())
            twin_pixels += int(pixels[self._decoder.inputs.twin[slots] != NO_SLOT].sum())
            self._decoder.launch(slots, max_pixels)
        step_slots = sum(len(slots) for slots, _ in calls)
        seconds = self._clock() - began
        step = _Step(small, len(calls), step_slots, longest, drawn, twin_pixels, began, seconds)
        self._in_flight.append(step)

    def synchronize(self, remaining: int) -> None:
        """Wait until only the last ``remaining`` steps are in flight, and measure the others.

        A prefill is waited for if a step is queued behind it, so that the device does not idle.
        """
        while self._in_flight:
            steps, oldest = self.in_flight, self._in_flight[0]
            if steps <= remaining and (not steps or isinstance(oldest, _Step)):
                break
            began = self._clock()
            self._in_flight.popleft()
            later = (one.calls if isinstance(one, _Step) else 1 for one in self._in_flight)
            self._decoder.synchronize(sum(later))
            waited = self._clock() - began
            if isinstance(oldest, _Step):
                self._measure(oldest, waited)
            else:
                self._charge_prefill(oldest, self._elapsed(oldest))

    def discard(self) -> None:
        """Forget the steps in flight, because their results are not needed any more."""
        self._in_flight.clear()

    def _charge_prefill(self, prefill: _Prefill, seconds: float) -> None:
        self.time_share.charge_prefill(prefill.pixels, prefill.small_pixels, seconds)
        prefill.done()

    def _elapsed(self, synchronized: _Step | _Prefill) -> float:
        """Return the time since the launch or, if that is later, the previous synchronization."""
        now = self._clock()
        elapsed = now - max(synchronized.began, self._synchronized_at)
        self._synchronized_at = now
        return elapsed

    def _measure(self, step: _Step, waited: float) -> None:
        """Record the timing of a step for which the host waited ``waited`` seconds."""
        elapsed = self._elapsed(step)
        # On a GPU the host works while a step runs, so the step lasts as long as both together.
        on_device = self._decoder.max_in_flight > 1
        seconds = elapsed if on_device else step.launch_seconds + waited
        self.time_share.charge(step.small, seconds)
        if step.pixels:
            host_seconds = elapsed - waited if on_device else 0.0
            budget = self.time_share.budgets[step.small]
            budget.update(seconds, step.max_pixels, step.slots, host_seconds)
            self._queue.update_rate(step.pixels + step.twin_pixels, elapsed)
        if self._observer:
            self._observer.stepped(seconds, step.pixels)
