"""Division of decoding time between small and large requests."""

from __future__ import annotations

from scanline.service.engine.generation import Generation

STEP_SECONDS = 0.015  # target length of a step, which delays a new image by as much
HOST_OVERLAP = 1.25  # on a GPU, a step should last this many times the host's concurrent work,
MAX_STEP_SECONDS = 4 * STEP_SECONDS  # but no longer than this
SMALL_RATIO = 4  # a request is small if another one needs this many times its slots


def is_small(generation: Generation, largest_demand: int) -> bool:
    """Return True if the request is small compared with one of ``largest_demand`` slots."""
    return generation.request_slots * SMALL_RATIO <= largest_demand


class StepBudget:
    """Number of pixels that fit into a short step, estimated from the previous step."""

    def __init__(self) -> None:
        self._seconds_per_pixel, self._slots, self._host_seconds = STEP_SECONDS, 1, 0.0

    def max_pixels(self, slots: int) -> int:
        """Return the number of pixels, at least one, that each of ``slots`` slots may draw."""
        # If more slots take part than in the previous step, assume that time grows in proportion.
        growth = max(1.0, slots / self._slots)
        # A GPU would wait for the host if steps were shorter than the host's work.
        seconds = max(STEP_SECONDS, min(self._host_seconds * HOST_OVERLAP, MAX_STEP_SECONDS))
        return max(1, int(seconds / (self._seconds_per_pixel * growth)))

    def update(self, seconds: float, pixels: int, slots: int, host_seconds: float = 0.0) -> None:
        """Record a step.

        Args:
            seconds: Duration of the step.
            pixels: Pixels per slot.
            slots: Number of slots.
            host_seconds: Duration of the host's work during the step, on a GPU.
        """
        self._seconds_per_pixel = max(seconds / pixels, 1e-7)
        self._slots, self._host_seconds = slots, host_seconds


class TimeShare:
    """Fair division of time between two groups: small requests and large ones.

    While both groups run, each step draws the images of one group only, the one that has used less
    time. So a small request takes about twice as long as it would alone, however large the others
    are. The images of the other group keep their slots and wait, which costs nothing because their
    state has a fixed size.

    Small requests together get half the time, or more if they come from more callers than the large
    ones. They start with a lead of one step.
    """

    def __init__(self) -> None:
        # All three dicts' keys: True for small requests, False for large ones.
        self.budgets = {True: StepBudget(), False: StepBudget()}
        self._used = {True: 0.0, False: 0.0}  # weighted seconds
        self._weight = {True: 1.0, False: 1.0}
        # Known pixels per second. At first 0, so that the first image is prefilled alone.
        self._prefill_rate = 0.0
        self._both = False  # whether both groups run

    def small_runs_next(self, small_callers: int, large_callers: int) -> bool:
        """Return True if the group of small requests runs next.

        Args:
            small_callers: Number of callers with running small requests.
            large_callers: Number of callers with running large requests.
        """
        if not small_callers or not large_callers:
            self._both = False
            return large_callers == 0
        if not self._both:
            # A group earns no credit while it is absent.
            self._both = True
            used = self._used
            used[True] = max(used[True], used[False] - STEP_SECONDS)
            used[False] = max(used[False], used[True] - STEP_SECONDS)
        self._weight[True] = max(1.0, small_callers / large_callers)
        return self._used[True] <= self._used[False]

    def may_prefill(self, small: bool) -> bool:
        """Return True if a group may prefill: it is next, or it runs alone.

        Otherwise repeated prefills would use up the group's share of time and starve its running
        images.
        """
        return not self._both or small is (self._used[True] <= self._used[False])

    def charge(self, small: bool, seconds: float) -> None:
        """Charge a group for a step."""
        self._used[small] += seconds / self._weight[small]

    @property
    def prefill_budget(self) -> float:
        """Number of known pixels that new images may prefill between two steps.

        A prefill delays the running images by at most ``MAX_STEP_SECONDS``, or by ``STEP_SECONDS``
        while small and large requests run.
        """
        return self._prefill_rate * (STEP_SECONDS if self._both else MAX_STEP_SECONDS)

    def charge_prefill(self, pixels: int, small_pixels: int, seconds: float) -> None:
        """Charge both groups for a prefill, and update the measured rate.

        Args:
            pixels: Number of pixels prefilled.
            small_pixels: How many of them belong to small requests.
            seconds: Duration of the prefill.
        """
        self._prefill_rate = pixels / max(seconds, 1e-7)
        self.charge(True, seconds * small_pixels / pixels)
        self.charge(False, seconds * (pixels - small_pixels) / pixels)
