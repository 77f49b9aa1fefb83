"""Ray Serve request router that sends a work item to the replica with the fewest images."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from scanline.service.distributed.messages import WorkItem


class _Routed(NamedTuple):
    """A routed work item.

    Attributes:
        tried: The chosen replica, and those that did not accept the work item before.
    """

    replica: ReplicaID
    images: int
    tried: frozenset[ReplicaID]


class FewestImagesRouter(RequestRouter):
    """Router by images; Ray Serve's own routers count requests, however many images they have."""

    def initialize_state(self) -> None:
        """Start without routed work items."""
        self._images: Counter[ReplicaID] = Counter()
        self._routed: dict[str, _Routed] = {}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Choose a replica, and count the images as its own until they are drawn.

        A second call for the same request means that the chosen replica did not accept it, for
        instance because its machine is lost.
        """
        if pending_request is None:
            return [[min(candidate_replicas, key=self._load)]]
        request = pending_request.metadata.internal_request_id
        tried = self._routed[request].tried if request in self._routed else frozenset[ReplicaID]()
        self._forget(request)
        left = [one for one in candidate_replicas if one.replica_id not in tried]
        chosen = min(left or candidate_replicas, key=self._load)
        items = [one for one in pending_request.args if isinstance(one, WorkItem)]
        images = sum(item.spec.n * item.spec.slots_per_image for item in items)
        tried = (tried if left else frozenset()) | {chosen.replica_id}
        self._routed[request] = _Routed(chosen.replica_id, images, tried)
        self._images[chosen.replica_id] += images
        pending_request.future.add_done_callback(  # a request cancelled now never completes
            lambda sent: self._forget(request) if sent.cancelled() else None
        )
        return [[chosen]]

    def _load(self, replica: RunningReplica) -> int:
        return self._images[replica.replica_id]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Stop counting the images, unless the request was routed again meanwhile."""
        routed = self._routed.get(internal_request_id)
        if routed is not None and routed.replica == replica_id:
            self._forget(internal_request_id)

    def _forget(self, request: str) -> None:
        routed = self._routed.pop(request, None)
        if routed is not None:
            self._images[routed.replica] -= routed.images
            if not self._images[routed.replica]:
                del self._images[routed.replica]
