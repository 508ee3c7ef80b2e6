"""Is a replica of Ray Serve: a server in a process of its own, and the way of requests to it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import aiohttp
import ray

from fastovms.errors import BackendUnavailable
from fastovms.ray_serve.child_server import ChildServer
from fastovms.ray_serve.http_proxy import HttpProxy
from fastovms.ray_serve.queue_scaling import queue_lengths
from fastovms.ray_serve.replica_options import ReplicaOptions

logger = logging.getLogger(__name__)

_FAILURE_GRACE: Final = 0.5
"""Seconds from the end of the server to that of the replica, in which what clients are told of it
gets to them."""


class ServeReplica:
    """An actor's callable. Ray Serve calls its methods by their names.

    A replica whose server has ended ends too: Ray gives it no request from then on, where it would
    go on for three failed health checks, and starts another at the next.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, options: ReplicaOptions
    ) -> None:
        context = ray.get_runtime_context()
        num_cpus = context.get_assigned_resources().get("CPU", 0.0)
        self._server = await ChildServer.start(
            options.serve_arguments(num_cpus), options.environment
        )
        self._proxy = HttpProxy(self._server.url)
        self._supervision = asyncio.create_task(self._end_with_server())

    def __serve_build_asgi_app__(self) -> HttpProxy:
        return self._proxy

    async def check_health(self) -> None:
        """Raises:
        BackendUnavailable: the server says that it cannot answer.
        """
        try:
            status, body = await self._proxy.get("/health")
        except aiohttp.ClientError as error:
            raise BackendUnavailable(f"/health does not answer: {error}") from None
        if status != 200:
            raise BackendUnavailable(f"/health answers {status}: {body}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the server's queues, for `queue_scaling.replicas_for_queues`."""
        _, metrics = await self._proxy.get("/metrics")
        return queue_lengths(metrics)

    async def __del__(self) -> None:
        """Ends the server when the replica has no request left. Ray kills both when this takes
        longer than `graceful_shutdown_timeout_s`."""
        if hasattr(self, "_supervision"):
            self._supervision.cancel()
            await self._server.stop()
            await self._proxy.close()

    async def _end_with_server(self) -> None:
        fate = await self._server.wait()
        logger.error("the server %s; this replica ends with it", fate)
        await asyncio.sleep(_FAILURE_GRACE)
        _end_this_actor()


def _end_this_actor() -> None:
    ray.kill(ray.get_runtime_context().current_actor)
