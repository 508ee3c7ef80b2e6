"""The application of Ray Serve, and its routing by prompt prefix."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from fastovms.config import EngineConfig
from fastovms.ray_serve.child_server import replica_options
from fastovms.ray_serve.replica import ServeReplica


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


NAME: Final = "fastovms"
"""Of the deployment, in the `deployments` of a YAML."""


def build(args: Mapping[str, Any]) -> serve.Application:
    """Returns the application with one deployment, whose options a YAML may change.

    Raises:
        ConfigurationError: `args` are not those of `ReplicaOptions`.
    """
    engine = EngineConfig()
    deployment = serve.deployment(
        serve.ingress()(ServeReplica),
        name=NAME,
        # More than the server lets run and wait, so that it is the one that refuses.
        max_ongoing_requests=2 * (engine.max_num_seqs + engine.max_num_queued_requests),
        health_check_period_s=1.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=60.0,
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
    )
    return deployment.bind(replica_options(args))
