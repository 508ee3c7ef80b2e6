"""Chooses the replica of a request: that of its session, which has its prompt's beginning in the
prefix cache, or the less busy of two."""

from __future__ import annotations

import random
from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter


class AffinityRouter(ConsistentHashRouter):
    """A request router of Ray Serve.

    Requests with the header of sessions (`x-session-id`, or what the environment's
    `RAY_SERVE_SESSION_ID_HEADER_KEY` names) go by consistent hashing, and past a replica that has
    `max_ongoing_requests`. Ray's router would draw a replica for all others, whatever they have to
    do; here these go to the one of two with the shorter queue. The body, where conversations and
    cache keys stand, is not here: the proxy hands routers the head of a request only.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Returns replicas in groups; a group is asked when the one before is full, and in it the
        replica with the shortest queue gets the request."""
        if pending_request is not None and pending_request.metadata.session_id:
            ranked: list[list[Any]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return ranked
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]
