"""Ray Serve autoscaling policy by slots of waiting and running images."""

from __future__ import annotations

import math
from typing import Any


def replicas_for_slots(context: Any) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas that one deployment should have.

    ``target_ongoing_requests`` is the number of slots per replica, which each replica counts itself
    (``Replica.record_autoscaling_stats``). Ray Serve applies bounds and delays. It sends this
    function to its controller by value, so it must not use anything else from this package.

    Args:
        context: Ray Serve's ``AutoscalingContext``.

    Returns:
        Number of replicas, and an empty policy state.
    """
    each = (context.aggregated_metrics or {}).get("slots", {})
    if not each:
        return context.target_num_replicas, {}
    wanted = math.ceil(sum(each.values()) / context.config.target_ongoing_requests)
    return max(1, wanted), {}
