"""Which replica draws a part: the one that this entrance has given the fewest images."""

from __future__ import annotations

from collections import Counter

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from scanline.service.cluster.parts import Part


class FewestImages(RequestRouter):
    """Ray Serve's router of parts; its own knows how many requests a replica has, not images."""

    def initialize_state(self) -> None:
        """Begin with nothing given."""
        self._images: Counter[ReplicaID] = Counter()
        self._given: dict[str, tuple[ReplicaID, int]] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Choose one, and count the images as its own until they are drawn."""
        chosen = min(candidate_replicas, key=lambda one: self._images[one.replica_id])
        if pending_request is not None:
            request = pending_request.metadata.internal_request_id
            parts = [one for one in pending_request.args if isinstance(one, Part)]
            images = sum(part.spec.n * part.spec.slots for part in parts)
            self._forget(request)  # it may have been refused by another
            self._given[request] = (chosen.replica_id, images)
            self._images[chosen.replica_id] += images
            pending_request.future.add_done_callback(  # cancelled on its way, it is never completed
                lambda sent: self._forget(request) if sent.cancelled() else None
            )
        return [[chosen]]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Count the images as nobody's any more, unless they are another's by now."""
        if self._given.get(internal_request_id, (None, 0))[0] == replica_id:
            self._forget(internal_request_id)

    def _forget(self, request: str) -> None:
        replica, images = self._given.pop(request, (None, 0))
        if replica is not None:
            self._images[replica] -= images
            if not self._images[replica]:
                del self._images[replica]
