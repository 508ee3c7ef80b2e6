"""Sends completions with prompts of token ids, one or many at once, and records the outcomes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from typing import Any, NamedTuple

from bench.endurance.json_client import LOST, JsonClient


class Ending(NamedTuple):
    """The outcome of a completion.

    Attributes:
        status: the HTTP status; 0 = the connection was closed before an answer.
        text: the text that was received.
        error: the error of the answer or of the stream's last event; empty if there is none.
    """

    status: int
    text: str
    error: str

    @property
    def is_good(self) -> bool:
        return self.status == 200 and not self.error


class Completion(NamedTuple):
    """A greedy request."""

    prompt: Sequence[int]
    max_tokens: int
    stream: bool = False


def complete(url: str, model: str, completion: Completion) -> Ending:
    """Sends the request over a new connection and waits for the end of the answer."""
    body = {"model": model, "temperature": 0, "ignore_eos": True, **completion._asdict()}
    client = JsonClient(url)
    try:
        response = client.send("POST", "/v1/completions", body)
        if response.status == 200 and completion.stream:
            return _read_stream(response)
        return _ending(response.status, json.loads(response.read()))
    except LOST as error:
        return Ending(0, "", repr(error))
    finally:
        client.close()


def complete_all(url: str, model: str, completions: Sequence[Completion]) -> list[Ending]:
    """Sends all requests at the same time."""
    with ThreadPoolExecutor(len(completions)) as pool:
        return list(pool.map(lambda one: complete(url, model, one), completions))


def _read_stream(response: HTTPResponse) -> Ending:
    text = ""
    for line in response:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return Ending(200, text, "")
        if line.startswith(b"data: "):
            event = _ending(200, json.loads(data))
            text += event.text
            if event.error:
                return event._replace(text=text)
    return Ending(0, text, "the stream broke off")


def _ending(status: int, answer: dict[str, Any]) -> Ending:
    if "error" in answer:
        return Ending(status, "", answer["error"]["message"])
    return Ending(status, "".join(choice["text"] for choice in answer["choices"]), "")
