"""`resume`: kills a server repeatedly while background responses run. Each response must end as it
would have ended without the kills, and its stream must have no gap."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx2
import openai
from openai.types.responses import Response

from bench.endurance.server import MODEL, ServerUnderTest
from bench.figures.command import Command
from bench.figures.figure import Figure

_FLAGS: Final = ("--precision", "exact", "--max-background-responses", "1000")
_PERSON: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_FORMAT: Final = {"type": "json_schema", "name": "person", "schema": _PERSON}
_TOOL: Final = {"type": "function", "name": "greet", "parameters": _PERSON}
_ENDLESS: Final = {"ignore_eos": True}
_REQUESTS: Final[Sequence[Mapping[str, Any]]] = (
    {"input": "Tell me a story.", "temperature": 0, "extra_body": _ENDLESS},
    {"input": "Tell me a story.", "extra_body": {**_ENDLESS, "seed": 1, "presence_penalty": 0.5}},
    {"input": "Who are you?", "extra_body": {"seed": 2}, "text": {"format": _FORMAT}},
    {
        "input": "Hello!",
        "extra_body": {"seed": 3},
        "tools": [_TOOL],
        "tool_choice": "required",
    },
)
"""The requests: greedy tokens, sampled tokens with penalties, a schema, and a tool call."""

_PATIENCE: Final = 600.0
"""The longest time of a response, and between two events of a stream, in seconds."""

_LONGEST_LIFE: Final = 3.0
"""The longest lifetime of the server from when it is ready, in seconds."""


class _Follower(threading.Thread):
    """Follows a response across all lives of the server.

    Attributes:
        events: the received events.
    """

    def __init__(self, url: str, id: str) -> None:
        super().__init__(daemon=True)
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._id = id
        self.events: list[Any] = []

    def run(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            last = self.events[-1].sequence_number if self.events else openai.omit
            try:
                for event in self._client.responses.retrieve(
                    self._id, stream=True, starting_after=last
                ):
                    self.events.append(event)
                    deadline = time.monotonic() + _PATIENCE
            except (openai.APIError, httpx2.TransportError):
                time.sleep(0.1)
                continue
            return


def _run(options: argparse.Namespace) -> Sequence[Figure]:
    rng = random.Random(options.seed)
    with TemporaryDirectory() as folder:
        server = ServerUnderTest(_FLAGS, Path(folder))
        server.start()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        try:
            whole = [_end_of(client, _start(client, fields, options)) for fields in _REQUESTS]
            ids = [
                _start(client, _REQUESTS[number % len(_REQUESTS)], options)
                for number in range(options.responses)
            ]
            followers = [_Follower(server.url, id) for id in ids[:: options.follow_each]]
            for follower in followers:
                follower.start()
            restarts = []
            for _ in range(options.kills):
                time.sleep(rng.uniform(0.0, _LONGEST_LIFE))
                server.process.kill()
                server.process.wait()
                start = time.monotonic()
                server.start()
                restarts.append(time.monotonic() - start)
            ends = [_end_of(client, id) for id in ids]
            for follower in followers:
                follower.join()
            streams = [list(client.responses.retrieve(id, stream=True)) for id in ids]
        finally:
            server.process.kill()
            server.process.wait()
    for end in ends:
        if end.error is not None:
            print(f"fault: {end.id}: {end.error.message}")
    expected = [_comparable(whole[number % len(whole)]) for number in range(len(ids))]
    pairs = list(zip(map(_comparable, ends), expected, strict=True))
    num_seen = sum(
        follower.events == streams[number * options.follow_each]
        for number, follower in enumerate(followers)
    )
    return [
        Figure("kills", options.kills, at_least=options.kills),
        Figure("longest restart", max(restarts), "s"),
        Figure("responses", len(ids)),
        Figure("that failed", sum(end.status == "failed" for end in ends), at_most=0),
        Figure("with another text or usage", sum(a != b for a, b in pairs), at_most=0),
        Figure("with a gap, or an event twice", sum(map(_has_gap, streams)), at_most=0),
        Figure("followers over all kills", len(followers)),
        Figure("that were sent anything else", len(followers) - num_seen, at_most=0),
    ]


def _start(client: openai.OpenAI, fields: Mapping[str, Any], options: argparse.Namespace) -> str:
    response: Response = client.responses.create(
        model=MODEL, background=True, max_output_tokens=options.tokens, **fields
    )
    return response.id


def _end_of(client: openai.OpenAI, id: str) -> Response:
    deadline = time.monotonic() + _PATIENCE
    while (response := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{id} is still {response.status}")
        time.sleep(0.1)
    return response


def _comparable(response: Response) -> dict[str, Any]:
    """Returns a response without its ids, its times and its number of cached tokens."""
    fields = response.model_dump(exclude={"id", "created_at", "completed_at"})
    if fields["usage"] is not None:
        fields["usage"].pop("input_tokens_details")
    for item in fields["output"]:
        for name in ("id", "call_id"):
            item.pop(name, None)
    return fields


def _has_gap(events: Sequence[Any]) -> bool:
    return [event.sequence_number for event in events] != list(range(len(events)))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--responses", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=600, help="of a response, at most")
    parser.add_argument("--follow-each", type=int, default=4, help="one in so many is followed")


COMMAND = Command(
    help="kills a server while responses run in the background; all of them must go on",
    run=_run,
    add_arguments=_add_arguments,
    short=None,
)
