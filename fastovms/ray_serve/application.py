"""Builds the application of Ray Serve: `serve run` imports `build` by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve.config import RequestRouterConfig

from fastovms.config.engine_config import EngineConfig
from fastovms.ray_serve.affinity_router import AffinityRouter
from fastovms.ray_serve.replica import ServeReplica
from fastovms.ray_serve.replica_options import replica_options

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
