"""Replicas behind a balancer, as the tests of each balancer use them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.deploy.client import DEADLINE
from tests.deploy.replica import Replica

CHATS = "/v1/chat/completions"


@dataclass(frozen=True)
class Fleet:
    """Replicas behind a balancer.

    Attributes:
        port: the balancer's port.
    """

    port: int
    replicas: list[Replica]

    @property
    def num_asked(self) -> list[int]:
        return [replica.num_asked for replica in self.replicas]

    def with_other(self, name: str) -> list[Replica]:
        """Returns the replica with this name and the other one of two."""
        return sorted(self.replicas, key=lambda replica: replica.name != name)

    def forget(self) -> None:
        for replica in self.replicas:
            replica.requests.clear()

    async def arrival(self) -> Replica:
        """Waits for a request to `/stream` or `/slow`; returns the replica that received it."""
        async with asyncio.timeout(DEADLINE):
            return await self.replicas[0].arrivals.get()


def chat(*texts: str, **members: object) -> dict[str, Any]:
    """Returns the body of a chat whose turns alternate between user and assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **members}


def large_chat(text: str, num_bytes: int) -> bytes:
    """Returns the body of a chat with one turn that contains a file of this size. Encoding such a
    file as JSON would block the event loop, and with it the replicas, for longer than balancers
    wait for health checks."""
    body = json.dumps(chat(text, file="")).encode()
    return body.removesuffix(b'"}') + b"x" * num_bytes + b'"}'
