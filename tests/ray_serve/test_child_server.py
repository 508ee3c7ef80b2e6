from __future__ import annotations

import asyncio
import urllib.request

import pytest

from fastovms.errors import BackendUnavailable
from fastovms.parts.ray_serve.child_server import ChildServer

SMALL = ("--cache-size", "0.01", "--no-enable-store")


def is_healthy(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
        return answer.status == 200


@pytest.mark.slow
async def test_a_server_starts_and_stops() -> None:
    server = await ChildServer.start(SMALL, {"MAX_NUM_SEQS": "3"})
    assert await asyncio.to_thread(is_healthy, server.url)
    await server.stop()
    assert await server.wait() == "has ended with code 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment"), [(["--no-such-flag"], {}), ([], {"MAX_NUM_SEQS": "many"})]
)
async def test_a_server_that_cannot_start_is_an_error(
    arguments: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(BackendUnavailable, match="the server has ended with code 2 before it was"):
        await ChildServer.start(arguments, environment)
