"""What a replica tells Ray of its server; tests/deploy/test_ray.py runs replicas in a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastovms.errors import BackendUnavailable

pytestmark = pytest.mark.usefixtures("ray_serve")


class FakeProxy:
    def __init__(self, answer: tuple[int, str] | Exception) -> None:
        self.answer = answer
        self.paths: list[str] = []

    async def get(self, path: str) -> tuple[int, str]:
        self.paths.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeServer:
    def __init__(self) -> None:
        self.has_ended = asyncio.Event()

    async def wait(self) -> str:
        await self.has_ended.wait()
        return "was ended by SIGKILL"


@pytest.fixture
def replica() -> Any:
    from fastovms.parts.ray_serve.replica import ServeReplica

    class NotAwaited(ServeReplica):
        def __del__(self) -> None:
            """Only Ray can await the other."""

    return NotAwaited.__new__(NotAwaited)


async def test_health_is_that_of_the_server(replica: Any) -> None:
    replica._proxy = FakeProxy((200, "{}"))
    await replica.check_health()
    assert replica._proxy.paths == ["/health"]


async def test_a_server_that_is_not_healthy_is_an_error(replica: Any) -> None:
    import aiohttp

    for answer, message in (
        ((503, "the engine has failed"), "/health answers 503: the engine has failed"),
        (aiohttp.ClientConnectionError("refused"), "/health does not answer: refused"),
    ):
        replica._proxy = FakeProxy(answer)
        with pytest.raises(BackendUnavailable, match=message):
            await replica.check_health()


async def test_autoscaling_metrics_count_the_queues(replica: Any) -> None:
    replica._proxy = FakeProxy((200, 'fastovms_num_requests_waiting{model_name="m"} 3.0\n'))
    stats = await replica.record_autoscaling_stats()
    assert stats == {"fastovms_num_requests_running": 0.0, "fastovms_num_requests_waiting": 3.0}
    assert replica._proxy.paths == ["/metrics"]


async def test_a_replica_ends_with_its_server(
    replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fastovms.parts.ray_serve.replica as module

    killed = []
    monkeypatch.setattr(module, "_FAILURE_GRACE", 0.0)
    monkeypatch.setattr(module, "_end_this_actor", lambda: killed.append(True))
    replica._server = FakeServer()
    supervision = asyncio.ensure_future(replica._end_with_server())
    await asyncio.sleep(0)
    assert not killed
    replica._server.has_ended.set()
    await supervision
    assert killed
