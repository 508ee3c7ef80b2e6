"""A replica starts a response and disappears, and another one takes the response over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastovms.errors import BackendUnavailable, StateFailed
from tests.api.responses.conftest import V1, Replica, ask, resume, start, wait_for
from tests.replicas import LEASE


async def start_response(api, body: dict[str, Any], path: str = V1) -> str:
    if body.get("conversation") is True:
        _, conversation = await ask(api, "POST", "/v1/conversations", {})
        body = {**body, "conversation": conversation["id"]}
    status, answer = await ask(api, "POST", path, body)
    assert (status, answer["status"]) == (200, "queued")
    return answer["id"]


async def cut_after(replica: Replica, ids: Sequence[str], num_steps: int) -> None:
    """Has a replica make the given number of steps and store their results, and cuts its connection
    to the database."""
    resume(replica.api, num_steps)
    for id in ids:
        run = replica.runs.find("", id)
        async with asyncio.timeout(60):
            while replica.api.steps_left > 0 or (run is not None and run._writer._is_behind):
                await asyncio.sleep(0.001)
                if run is None or run.has_ended:
                    break
    replica.store.error = StateFailed("gone")


async def take_over(replica: Replica, clock) -> None:
    """Lets the lease of a replica that has disappeared expire."""
    for _ in range(int(LEASE) + 2):
        await replica.renew()
        clock.now += 1
    await replica.renew()


async def renew_until(replica: Replica, asking: asyncio.Future[Any]) -> Any:
    """Renews the leases of a replica until a request has its answer, and returns the answer."""
    async with asyncio.timeout(60):
        while not asking.done():
            await replica.renew()
    return await asking


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def change_files(replica: Replica, fingerprint: str) -> None:
    """Changes the files of a replica's model."""
    backend = replica.api.backend
    backend._model = replace(backend.model, fingerprint=fingerprint)
    [known] = replica.api.context.models.known
    known.fingerprint = fingerprint


class Holder:
    """Loads the model of a replica when a test requests it.

    Attributes:
        failure: the error of the load, or None.
        num_uses: the number of current users.
    """

    def __init__(self, replica: Replica) -> None:
        models = replica.api.context.models
        [self._known] = models.known
        self._served, self._known.served = self._known.served, None
        self.may_load = asyncio.Event()
        self.failure: BackendUnavailable | None = None
        self.num_uses = 0
        models.holder = self  # type: ignore[assignment]

    def try_acquire(self, name: str) -> None:
        return None

    async def acquire(self, name: str, client: str = "") -> Callable[[], None]:
        assert name == self._known.name
        await self.may_load.wait()
        if self.failure is not None:
            raise self.failure
        self._known.served = self._served
        self.num_uses += 1
        return self._release

    def _release(self) -> None:
        self.num_uses -= 1


async def running_response(replica) -> str:
    """Starts a response that has generated some text."""
    resume(replica.api, 0)
    id = await start(replica.api)
    resume(replica.api, 3)
    await wait_for(replica.api, id, "in_progress")
    return id
