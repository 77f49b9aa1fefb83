"""Store of idempotency keys: a repeated request gets the generation that it started before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from scanline.service.engine.generation import Generation, GenerationSpec
from scanline.service.engine.queue import QueuedGeneration


class IdempotencyConflictError(Exception):
    """The key was used before with a different request."""


def fingerprint(model: str, spec: GenerationSpec, seed: int | None) -> bytes:
    """Return a hash that differs for requests that draw different images.

    Args:
        model: Name of the model.
        spec: What to draw.
        seed: Seed in the request, or None if the server chose ``spec.seed``.
    """
    digest = hashlib.sha256(repr(model).encode())
    # Hash every field, so that a new field cannot be forgotten: requests that differ only in that
    # field would get each other's images.
    for field in fields(spec):
        value = seed if field.name == "seed" else getattr(spec, field.name)
        digest.update(f"\0{field.name}\0".encode())  # separates the values
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.digest()


class RequestKey(NamedTuple):
    """Idempotency key of a request.

    Attributes:
        scope: Client that the key belongs to.
        name: The key itself.
        fingerprint: Hash of the request (see ``fingerprint``).
    """

    scope: str
    name: str
    fingerprint: bytes


class IdempotencyStore:
    """Map from idempotency keys to generations. Not thread-safe: used by the event loop only.

    Args:
        find: Finds a live or kept generation by its id.
    """

    def __init__(self, find: Callable[[str], QueuedGeneration | None]) -> None:
        self._find = find
        # Weak references bound the store: a key disappears once the queue drops its generation.
        self._generations: WeakValueDictionary[tuple[str, str], Generation] = WeakValueDictionary()
        self._fingerprints: WeakKeyDictionary[Generation, bytes] = WeakKeyDictionary()

    def has_result(self, scope: str, name: str | None) -> bool:
        """Return True if a request with this key reuses a generation and needs no capacity."""
        if name is None or (generation := self._generations.get((scope, name))) is None:
            return False
        kept = self._find(generation.id) is not None
        return kept and generation.error is None and not generation.cancelled

    def get_or_submit(
        self, key: RequestKey, submit: Callable[[], QueuedGeneration]
    ) -> QueuedGeneration:
        """Return the key's generation; call ``submit`` if it is gone, failed or was cancelled.

        Args:
            key: The request's key.
            submit: Function that submits the request.

        Raises:
            IdempotencyConflictError: The key was used with a different request.
            Exception: Whatever ``submit`` raises.
        """
        scoped_name = (key.scope, key.name)
        generation = self._generations.get(scoped_name)
        if generation is not None and (found := self._find(generation.id)) is not None:
            if self._fingerprints[generation] != key.fingerprint:
                raise IdempotencyConflictError
            if generation.error is None and found.queue.reattach(generation):
                return found
        submitted = submit()
        self._generations[scoped_name] = submitted.generation
        self._fingerprints[submitted.generation] = key.fingerprint
        return submitted
