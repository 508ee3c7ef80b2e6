"""Generates the requests of an edge box in half a day. A seed determines all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from bench.endurance.server import MODEL

_SENTENCES: Final = (
    "Once upon a time a small fox lived at the edge of the forest.",
    "What is the weather in Paris?",
    "My name is Alice and I like to paint.",
    "The old man sat by the river and told a story to the children.",
    "What is 7 + 5?",
)
_WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_LEAVING: Final = 0.04
_NEW_SCHEMAS: Final = 0.01


class SoakRequest(NamedTuple):
    """A request.

    Attributes:
        kind: its name in the figures.
        path: may contain `{id}`, which is replaced with the id of an earlier response.
        body: a request with a body is a POST; `{id}` in it is replaced as well.
        status: the expected status of the response.
        leaves: whether the client disconnects in the middle of the response.
    """

    kind: str
    path: str
    body: Mapping[str, Any] | None
    status: int = 200
    leaves: bool = False

    def encode(self, id: str) -> bytes:
        """Returns the bytes of the request."""
        path = self.path.replace("{id}", id)
        if self.body is None:
            return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        data = json.dumps(self.body).replace("{id}", id).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


def _prompt(rng: Random) -> str:
    return " ".join(rng.choices(_SENTENCES, k=rng.choice((1, 1, 2, 4, 8))))


def _schema(rng: Random) -> dict[str, Any]:
    """Returns one of a few fixed schemas, or a new variant of one."""
    number = rng.randrange(10**9) if rng.random() < _NEW_SCHEMAS else rng.randrange(5)
    members = {f"name_{number}": {"type": "string", "maxLength": 10}, "age": {"type": "integer"}}
    return {"type": "object", "properties": members, "required": ["age"]}


def _completion(rng: Random) -> SoakRequest:
    is_stream = rng.random() < 0.6
    body = {"model": MODEL, "prompt": _prompt(rng), "max_tokens": rng.randrange(4, 48)}
    body |= {"temperature": rng.choice((0, 0.7, 1)), "stream": is_stream}
    if rng.random() < 0.2:
        body["logprobs"] = 3
    path = rng.choice(("/v1/completions", "/v3/completions"))
    return SoakRequest("completion", path, body, leaves=is_stream and rng.random() < _LEAVING)


def _chat(rng: Random) -> SoakRequest:
    messages = [{"role": "user", "content": _prompt(rng)}]
    body: dict[str, Any] = {"model": MODEL, "messages": messages}
    body |= {"max_tokens": rng.randrange(4, 48), "stream": rng.random() < 0.7}
    kind = rng.random()
    if kind < 0.2:
        body |= {"tools": [_WEATHER], "temperature": 0}
    elif kind < 0.4:
        format = {"name": "person", "schema": _schema(rng)}
        body["response_format"] = {"type": "json_schema", "json_schema": format}
    path = rng.choice(("/v1/chat/completions", "/v3/chat/completions"))
    leaves = bool(body["stream"]) and rng.random() < _LEAVING
    return SoakRequest("chat", path, body, leaves=leaves)


def _response(rng: Random) -> SoakRequest:
    body: dict[str, Any] = {"model": MODEL, "input": _prompt(rng)}
    body |= {"max_output_tokens": rng.randrange(4, 32), "stream": rng.random() < 0.5}
    if rng.random() < 0.4:
        body["previous_response_id"] = "{id}"
        body["truncation"] = "auto"
    return SoakRequest("response", "/v1/responses", body)


def _stored(rng: Random) -> SoakRequest:
    return SoakRequest("stored response", "/v1/responses/{id}", None)


def _tokenize(rng: Random) -> SoakRequest:
    return SoakRequest("tokenize", "/tokenize", {"prompt": _prompt(rng)})


def _mistake(rng: Random) -> SoakRequest:
    body = {"model": MODEL, "prompt": _prompt(rng), "temperature": rng.randrange(3, 9)}
    return SoakRequest("mistake", "/v1/completions", body, status=400)


def _health(rng: Random) -> SoakRequest:
    return SoakRequest("health", rng.choice(("/health", "/ready", "/v1/models")), None)


def _metrics(rng: Random) -> SoakRequest:
    return SoakRequest("metrics", "/metrics", None)


_AN_HOUR: Final = (
    *((_completion, 600), (_chat, 900), (_response, 250), (_stored, 50), (_tokenize, 60)),
    *((_mistake, 30), (_health, 720), (_metrics, 240)),
)
"""The number of requests of each kind per hour: a text every two seconds, a health check every
five, a scrape every fifteen."""

REQUESTS_AN_HOUR: Final = sum(count for _, count in _AN_HOUR)


class SoakMix:
    """Draws requests and their times."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._kinds = [kind for kind, _ in _AN_HOUR]
        self._weights = [count for _, count in _AN_HOUR]

    def arrivals(self, hours: float) -> Sequence[float]:
        """Returns the times of the requests of the given number of hours, as shares of it: random,
        more by day than by night, and sometimes several at once."""
        number = round(hours * REQUESTS_AN_HOUR)
        moments: list[float] = []
        while len(moments) < number:
            moment = self._rng.random()
            burst = 1 if self._rng.random() < 0.98 else self._rng.randrange(2, 12)
            moments += [moment] * burst
        return sorted(moments[:number])

    def make(self) -> SoakRequest:
        [kind] = self._rng.choices(self._kinds, self._weights)
        return kind(self._rng)
