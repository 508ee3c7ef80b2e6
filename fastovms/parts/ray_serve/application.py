"""The Ray Serve application, and its session-aware request router."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from fastovms.config import EngineConfig
from fastovms.parts.ray_serve.child_server import replica_options
from fastovms.parts.ray_serve.replica import ServeReplica


class AffinityRouter(ConsistentHashRouter):
    """A request router for Ray Serve.

    Requests with a session header (`x-session-id`, or the header named in the environment variable
    `RAY_SERVE_SESSION_ID_HEADER_KEY`) are routed by consistent hashing, skipping replicas that have
    `max_ongoing_requests`. Other requests go to the replica with the shorter queue of two random
    ones. Routers see only the head of a request, so they cannot use conversations and cache keys in
    the body.
    """

    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        """Returns groups of replicas in order of preference. Within a group, the replica with the
        shortest queue gets the request; the next group is used if all are full."""
        if pending_request is not None and pending_request.metadata.session_id:
            ranked: list[list[Any]] = await super().choose_replicas(
                candidate_replicas, pending_request
            )
            return ranked
        return [random.sample(candidate_replicas, min(2, len(candidate_replicas)))]


NAME: Final = "fastovms"
"""The deployment's name in the `deployments` of a YAML file."""


def build(args: Mapping[str, Any]) -> serve.Application:
    """Returns the application with one deployment, whose options can be changed in YAML. Raises
    ConfigurationError if `args` do not match `ReplicaOptions`."""
    engine = EngineConfig()
    deployment = serve.deployment(
        serve.ingress()(ServeReplica),
        name=NAME,
        # Higher than the server's own limits, so that the server and not Ray rejects requests.
        max_ongoing_requests=2 * (engine.max_num_seqs + engine.max_num_queued_requests),
        health_check_period_s=1.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=60.0,
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
    )
    return deployment.bind(replica_options(args))
