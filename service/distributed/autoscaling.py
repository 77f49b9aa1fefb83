"""How many replicas a model needs: by the slots of its images, waiting and running, anywhere."""

from __future__ import annotations

import math
from typing import Any


def replicas_for_slots(context: Any) -> tuple[int, dict[str, Any]]:
    """Give the replicas to have of one deployment (Ray Serve's autoscaling policy).

    Each is to have ``target_ongoing_requests`` slots, as every replica counts them
    (``Replica.record_autoscaling_stats``). Ray Serve minds the bounds and delays. It sends this
    function to its controller by value, so it needs nothing of the project.
    """
    each = (context.aggregated_metrics or {}).get("slots", {})
    if not each:
        return context.target_num_replicas, {}
    wanted = math.ceil(sum(each.values()) / context.config.target_ongoing_requests)
    return max(1, wanted), {}
