"""Requests that come again: the same key draws the same generation, not another."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from scanline.service.generation import Generation, Spec
from scanline.service.queue import Queue

MOST = 10_000  # keys remembered


class OtherRequestError(Exception):
    """A key came before with another request."""


@dataclass(frozen=True)
class _Known:
    queue: Queue
    identifier: str
    mark: bytes


def fingerprint(model: str, spec: Spec, seed: int | None) -> bytes:
    """Tell requests apart by what they want drawn; ``seed`` is the one asked for, if any was."""
    facts = (
        model, spec.n, seed, spec.label, spec.any_label, spec.temperature, spec.top_p,
        spec.guidance, spec.particles,
    )  # fmt: skip
    digest = hashlib.sha256(repr(facts).encode())
    for array in (spec.canvas, spec.known):
        digest.update(b"-" if array is None else array.tobytes())
    return digest.digest()


class Repeats:
    """Which generation a key began, while it is kept; from one thread only."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def begin(
        self,
        key: tuple[str, str],
        mark: bytes,
        submit: Callable[[], tuple[Queue, Generation]],
        caller: str = "",
    ) -> Generation:
        """Give the generation that the key began, or ``submit`` one if it is gone or went wrong.

        A key is whose it is, and what they call it. Raises what ``submit`` does, and
        ``OtherRequestError`` where the key came with another ``mark``.
        """
        known = self._known.get(key)
        if known is not None and (generation := known.queue.find(known.identifier)):
            if known.mark != mark:
                raise OtherRequestError
            if generation.error is None and known.queue.expect(generation, caller):
                return generation
        queue, generation = submit()
        self._known[key] = _Known(queue, generation.id, mark)
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return generation
