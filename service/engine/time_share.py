"""Whose turn it is: steps short enough to let others in, and half the time for small requests."""

from __future__ import annotations

import math

STEP_SECONDS = 0.015  # how long one call of the decoder may keep a new image waiting
HOST_OVERLAP = 1.25  # a device's step lasts so many times what the host does beside it,
MAX_STEP_SECONDS = 4 * STEP_SECONDS  # up to this
LIGHT_RATIO = 4  # a request is light beside one that wants so many times its slots


class StepBudget:
    """What one pixel takes, by the last step, and so how many fit into a short one."""

    def __init__(self) -> None:
        self._seconds, self._slots, self._host = STEP_SECONDS, 1, 0.0

    def max_pixels(self, slots: int) -> int:
        """Count the pixels that so many slots may draw at once, one at least."""
        joined = max(1.0, slots / self._slots)  # a crowd may take that much longer
        # A device would wait for the host after steps that are shorter than the host's work.
        seconds = max(STEP_SECONDS, min(self._host * HOST_OVERLAP, MAX_STEP_SECONDS))
        return max(1, int(seconds / (self._seconds * joined)))

    def update(self, seconds: float, pixels: int, slots: int, host: float = 0.0) -> None:
        """Learn from a step of so many pixels, beside which the host worked ``host`` seconds."""
        self._seconds, self._slots, self._host = max(seconds / pixels, 1e-7), slots, host


class TimeShare:
    """Two groups share the time: the light generations, drawn by themselves, and the heavy ones.

    So a small request takes at most about twice as long as it would alone, whatever large ones run:
    these wait where they are, each state in its slot. The light ones have half the time, and more
    where they have more callers; they begin with a step's head start. Where the decoder does not
    prefill known pixels, an image that has some begins like any other.
    """

    def __init__(self, supports_prefill: bool = True) -> None:
        self.budgets = {
            True: StepBudget(),
            False: StepBudget(),
        }  # of the light ones, and of the heavy ones
        # Known pixels a second; unknown before the first image, which is taken alone.
        self._prefill_rate = 0.0 if supports_prefill else math.inf
        self._used = {True: 0.0, False: 0.0}  # seconds, those of many generations counting less
        self._shared = False
        self._share = 1.0  # of the light ones, the heavy ones' being 1

    def light_runs_next(self, light: int, heavy: int) -> bool:
        """Choose whose turn it is, where each group is of so many callers: the light ones'?"""
        if not light or not heavy:
            self._shared = False
            return heavy == 0
        if not self._shared:  # who was away has saved nothing up
            self._shared = True
            used = self._used
            used[True] = max(used[True], used[False] - STEP_SECONDS)
            used[False] = max(used[False], used[True] - STEP_SECONDS)
        self._share = max(1.0, light / heavy)
        return self._used[True] <= self._used[False]

    def may_prefill(self, light: bool) -> bool:
        """Whether a group is next, or has no other beside it.

        Otherwise repeated prefilling would run its group into debt, which all in it would pay.
        """
        if self._prefill_rate == math.inf:
            return True
        return not self._shared or light is (self._used[True] <= self._used[False])

    def charge(self, light: bool, seconds: float) -> None:
        """Count the time of a group's step."""
        self._used[light] += seconds / self._share if light else seconds

    @property
    def prefill_budget(self) -> float:
        """Count the known pixels that new images may prefill between two steps.

        So many as hold up those who draw no longer than the longest step, or a usual one where
        there are light ones, whose time it is not.
        """
        return self._prefill_rate * (STEP_SECONDS if self._shared else MAX_STEP_SECONDS)

    def charge_prefill(self, pixels: int, of_light: int, seconds: float) -> None:
        """Count the time of prefilling so many known pixels, and learn from it."""
        self._prefill_rate = pixels / max(seconds, 1e-7)
        self.charge(True, seconds * of_light / pixels)
        self.charge(False, seconds * (pixels - of_light) / pixels)
