"""Requests that come again: the same key draws the same generation, not another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue import Queue


class IdempotencyConflictError(Exception):
    """A key came before with another request."""


def fingerprint(model: str, spec: GenerationSpec, seed: int | None) -> bytes:
    """Tell requests apart by what they want drawn; ``seed`` is the one asked for, if any was."""
    digest = hashlib.sha256(repr(model).encode())
    # All of them, so that one that is new is not left out: its pictures would pass for others.
    for field in fields(spec):
        value = seed if field.name == "seed" else getattr(spec, field.name)
        digest.update(f"\0{field.name}\0".encode())  # or a value could pass for the next one's
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.digest()


class RequestKey(NamedTuple):
    """What a request is called, and by whom; its mark tells it from another of that name."""

    scope: str
    name: str
    fingerprint: bytes


class IdempotencyStore:
    """Which generation a key began, while it is kept; from one thread only."""

    def __init__(self) -> None:
        # A generation goes when its queue forgets it, and its key with it: no more bound is needed.
        self._begun: WeakValueDictionary[tuple[str, str], Generation] = WeakValueDictionary()
        self._from: WeakKeyDictionary[Generation, tuple[Queue, bytes]] = WeakKeyDictionary()

    def has_result(self, whose: str, name: str | None) -> bool:
        """Say whether what this key began would be given again, for which no room is needed."""
        if name is None or (begun := self._begun.get((whose, name))) is None:
            return False
        queue, _ = self._from[begun]
        return queue.find(begun.id) is not None and begun.error is None and not begun.cancelled

    def get_or_submit(
        self,
        key: RequestKey,
        submit: Callable[[], tuple[Queue, Generation]],
        caller: str = "",
    ) -> Generation:
        """Give the generation that the key began, or ``submit`` one if it is gone or went wrong.

        Raises what ``submit`` does, and ``IdempotencyConflictError`` where the key came with
        another mark.
        """
        name, mark = (key.scope, key.name), key.fingerprint
        if (begun := self._begun.get(name)) is not None:
            queue, known = self._from[begun]
            if queue.find(begun.id) is not None:
                if known != mark:
                    raise IdempotencyConflictError
                if begun.error is None and queue.reattach(begun, caller):
                    return begun
        queue, generation = submit()
        self._begun[name], self._from[generation] = generation, (queue, mark)
        return generation
