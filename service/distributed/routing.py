"""Which replica draws a part: the one that this frontend has given the fewest images."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from scanline.service.distributed.messages import WorkItem


class _Given(NamedTuple):
    replica: ReplicaID
    images: int
    tried: frozenset[ReplicaID]  # this one, and those that did not take it before


class FewestImagesRouter(RequestRouter):
    """Ray Serve's router of parts; its own knows how many requests a replica has, not images."""

    def initialize_state(self) -> None:
        """Begin with nothing given."""
        self._images: Counter[ReplicaID] = Counter()
        self._given: dict[str, _Given] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Choose one, and count the images as its own until they are drawn.

        Asked again, the one before did not take them, as where its machine is lost.
        """
        if pending_request is None:
            return [[min(candidate_replicas, key=self._load)]]
        request = pending_request.metadata.internal_request_id
        tried = self._given[request].tried if request in self._given else frozenset[ReplicaID]()
        self._forget(request)
        left = [one for one in candidate_replicas if one.replica_id not in tried]
        chosen = min(left or candidate_replicas, key=self._load)
        parts = [one for one in pending_request.args if isinstance(one, WorkItem)]
        images = sum(part.spec.n * part.spec.slots for part in parts)
        tried = (tried if left else frozenset()) | {chosen.replica_id}
        self._given[request] = _Given(chosen.replica_id, images, tried)
        self._images[chosen.replica_id] += images
        pending_request.future.add_done_callback(  # cancelled on its way, it is never completed
            lambda sent: self._forget(request) if sent.cancelled() else None
        )
        return [[chosen]]

    def _load(self, replica: RunningReplica) -> int:
        return self._images[replica.replica_id]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count the images as nobody's any more, unless they are another's by now."""
        given = self._given.get(internal_request_id)
        if given is not None and given.replica == replica_id:
            self._forget(internal_request_id)

    def _forget(self, request: str) -> None:
        given = self._given.pop(request, None)
        if given is not None:
            self._images[given.replica] -= given.images
            if not self._images[given.replica]:
                del self._images[given.replica]
