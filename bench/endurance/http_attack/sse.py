"""Whether a stream of server-sent events, or a JSON answer, is what a client can read."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from bench.endurance.http_attack.answers import Answer

_EVENT_STREAM: Final = re.compile(rb"\r\ncontent-type: text/event-stream", re.IGNORECASE)
_JSON: Final = re.compile(rb"\r\ncontent-type: application/json", re.IGNORECASE)
_TOO_LONG: Final = "This model's maximum context length"
"""OpenAI's words, which name no field."""

_STEP: Final = re.compile(r"[\w-]+")


def judge_body(path: str, answer: Answer) -> str:
    """Returns what is wrong with an answer of an API endpoint, or nothing."""
    if answer.status >= 500 and answer.status != 503:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if _EVENT_STREAM.search(answer.head):
        return _judge_events(answer)
    if not _JSON.search(answer.head):
        return f"a body that is no JSON: {answer.head!r}" if answer.body else ""
    if answer.status == 200 and not answer.body:
        return ""
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        return f"malformed JSON ({error}): {answer.body[:300]!r}"
    return _judge_error(path, value, answer.status) if answer.status >= 400 else ""


def _judge_error(path: str, value: Any, status: int) -> str:
    """In the form of the path's dialect; and the message says which field is meant."""
    error = value.get("error") if isinstance(value, dict) else None
    if path.startswith(("/v3", "/v2")):
        return "" if isinstance(error, str) and error else f"no error of OVMS's form: {value!r}"
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        return f"no error of OpenAI's form: {value!r}"
    message, param = error["message"], error["param"]
    if not isinstance(message, str) or not message or not isinstance(error["type"], str):
        return f"no error of OpenAI's form: {value!r}"
    if param is not None and status == 400:
        name = _STEP.search(param)
        if name and name[0] not in message and not message.startswith(_TOO_LONG):
            return f"the message does not name {param!r}: {message!r}"
    return ""


def _judge_events(answer: Answer) -> str:
    frames = answer.body.split(b"\n\n")
    if frames.pop():
        return f"a stream that ends within an event: {answer.body[-200:]!r}"
    last = b""
    for frame in frames:
        for line in frame.split(b"\n"):
            if line.startswith(b"data: "):
                last = line[6:]
                if last != b"[DONE]":
                    try:
                        orjson.loads(last)
                    except orjson.JSONDecodeError:
                        return f"an event that is no JSON: {line[:300]!r}"
            elif not line.startswith((b"event: ", b":", b"id: ")):
                return f"a line of no kind: {line[:300]!r}"
    return "" if last == b"[DONE]" else f"a stream without its end: {answer.body[-300:]!r}"
