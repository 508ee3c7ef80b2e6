"""Clients that store responses and check later that they are still stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bench.endurance.json_client import LOST, Body, JsonClient
from bench.endurance.server import MODEL

_METADATA: Final = {f"key{number}": "x" * 500 for number in range(16)}
"""The greatest size of a response, some 8 KB, so that a small disk is soon full."""


@dataclass(slots=True)
class StoreResults:
    """The results.

    Attributes:
        num_unstored: answers with `"store": false`, which a full disk causes.
        longest: the longest latency in seconds.
        kept: the expected stored responses by path.
        bad: answers that failed.
    """

    num_unstored: int = 0
    longest: float = 0.0
    kept: dict[str, Body] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


def store(url: str, count: int, results: StoreResults, *, num_clients: int = 4) -> None:
    """Requests the given number of stored responses.

    Args:
        results: the outcomes are added to it.
    """
    left = iter(range(count))

    def work() -> None:
        client = JsonClient(url)
        for _ in left:
            _store_one(client, results)
        client.close()

    threads = [threading.Thread(target=work) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _store_one(client: JsonClient, results: StoreResults) -> None:
    request = {"model": MODEL, "input": "Hello", "max_output_tokens": 2, "metadata": _METADATA}
    start = time.monotonic()
    try:
        status, body = client.ask("POST", "/v1/responses", request)
    except (*LOST, ValueError) as error:
        client.close()
        results.bad.append(repr(error))
        return
    results.longest = max(results.longest, time.monotonic() - start)
    if status != 200:
        results.bad.append(f"{status} {body}")
    elif body["store"]:
        results.kept[f"/v1/responses/{body['id']}"] = body
    else:
        results.num_unstored += 1


def num_missing(url: str, kept: Mapping[str, Body]) -> int:
    """Returns the number of stored responses that are missing or changed."""
    client = JsonClient(url)
    try:
        return sum(client.ask("GET", path) != (200, body) for path, body in kept.items())
    finally:
        client.close()
