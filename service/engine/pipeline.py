"""A decoder's steps: launched one behind the other, landed the oldest first, and measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scanline.model.decoders.base import NO_SLOT, Decoder, InputBatch
from scanline.service.engine.generation import Clock
from scanline.service.engine.progress import Observer
from scanline.service.engine.queue import Queue
from scanline.service.engine.time_share import TimeShare


class _Step(NamedTuple):
    """A launched step, of the ``light`` generations or of the heavy ones.

    It is so many ``calls`` of the decoder, over so many ``slots``; ``pixels`` is the most that one
    of them draws, ``drawn`` what all draw together, and ``twins`` what their twins draw besides.
    ``began`` says when the launch did, and ``took`` how many seconds it lasted.
    """

    light: bool
    calls: int
    slots: int
    pixels: int
    drawn: int
    twins: int
    began: float
    took: float


class StepPipeline:
    """What a decoder has in flight, and what each step taught of its pace; one thread's alone."""

    def __init__(
        self, decoder: Decoder, queue: Queue, observer: Observer | None, clock: Clock
    ) -> None:
        self.time_share = TimeShare(decoder.supports_prefill)
        self._decoder, self._queue = decoder, queue
        self._observer, self._clock = observer, clock
        self._in_flight: deque[_Step] = deque()  # the oldest first
        self._synchronized_at = 0.0  # when the last one did

    @property
    def in_flight(self) -> int:
        """Count the steps that have not landed."""
        return len(self._in_flight)

    def begin(self, slots: Sequence[int], inputs: InputBatch, light: Sequence[bool]) -> None:
        """Begin images, each of a ``light`` generation or not: prefilling counts as its time."""
        began = self._clock()
        self._decoder.begin(slots, inputs)
        if not self._decoder.supports_prefill:
            return
        took = self._clock() - began
        prefilled = inputs.prefix_lengths * np.where(inputs.twin == NO_SLOT, 1, 2)
        if pixels := int(prefilled.sum()):
            self.time_share.charge_prefill(pixels, int(prefilled[np.array(light)].sum()), took)

    def launch(self, calls: Sequence[tuple[NDArray[np.int32], int]], *, light: bool) -> None:
        """Launch a step: of each call some slots, and up to how many pixels of each."""
        began = self._clock()
        calls = [(slots, pixels) for slots, pixels in calls if len(slots)]
        longest = drawn = twins = 0
        for slots, pixels in calls:
            left = self._decoder.config.pixels - self._decoder.scheduled_positions[slots]
            each = np.minimum(left, pixels)
            longest = max(longest, int(each.max()))
            drawn += int(each.sum())
            twins += int(each[self._decoder.inputs.twin[slots] != NO_SLOT].sum())
            self._decoder.launch(slots, pixels)
        step_slots = sum(len(slots) for slots, _ in calls)
        took = self._clock() - began
        step = _Step(light, len(calls), step_slots, longest, drawn, twins, began, took)
        self._in_flight.append(step)

    def synchronize(self, leave: int) -> None:
        """Wait for all steps in flight but the last ``leave``, and learn from them."""
        while len(self._in_flight) > leave:
            waiting = self._clock()
            step = self._in_flight.popleft()
            self._decoder.synchronize(sum(later.calls for later in self._in_flight))
            self._measure(step, self._clock() - waiting)

    def discard(self) -> None:
        """Wait for none of them: nobody does any more."""
        self._in_flight.clear()

    def _measure(self, step: _Step, waited: float) -> None:
        """Learn from a step for which the host has waited so many seconds."""
        now = self._clock()
        since = now - max(step.began, self._synchronized_at)
        self._synchronized_at = now
        # What the host does beside a step on a device costs nothing, if it is done by its end.
        device = self._decoder.max_in_flight > 1
        took = since if device else step.took + waited
        self.time_share.charge(step.light, took)
        if step.drawn:
            host = since - waited if device else 0.0
            self.time_share.budgets[step.light].update(took, step.pixels, step.slots, host)
            self._queue.update_rate(step.drawn + step.twins, since)
        if self._observer:
            self._observer.stepped(took, step.drawn)
