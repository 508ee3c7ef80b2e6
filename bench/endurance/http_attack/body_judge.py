"""Checks that a client can read the body of a response: JSON, server-sent events or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from bench.endurance.http_attack.answers import Answer
from fastovms.api.dialect import ANTHROPIC, COHERE, OLLAMA, OPENAI, OVMS, dialect_of

_EVENT_STREAM: Final = re.compile(rb"\r\ncontent-type: text/event-stream", re.IGNORECASE)
_LINES: Final = re.compile(rb"\r\ncontent-type: application/x-ndjson", re.IGNORECASE)
_JSON: Final = re.compile(rb"\r\ncontent-type: application/json", re.IGNORECASE)
_TOO_LONG: Final = "This model's maximum context length"
"""OpenAI's error messages that name no field."""

_STEP: Final = re.compile(r"[\w-]+")


def judge_body(path: str, answer: Answer) -> str:
    """Returns the fault of a response of an API endpoint, or None."""
    if answer.status >= 500 and answer.status != 503:
        return f"status {answer.status}: {answer.body[:300]!r}"
    if _EVENT_STREAM.search(answer.head):
        return _judge_events(path, answer)
    if _LINES.search(answer.head):
        return _judge_lines(answer)
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
    """Checks that an error has the format of the path's dialect and that its message names the
    field."""
    if not isinstance(value, dict):
        return f"an error that is no object: {value!r}"
    error: Any = value.get("error")
    dialect = dialect_of(path)
    if not _IS_ERROR[dialect.name](value, error):
        return f"no error of the form of {dialect.name}: {value!r}"
    if dialect is OPENAI and error["param"] is not None and status == 400:
        message, param = error["message"], error["param"]
        name = _STEP.search(param)
        if name and name[0] not in message and not message.startswith(_TOO_LONG):
            return f"the message does not name {param!r}: {message!r}"
    return ""


def _is_text(value: Any, error: Any) -> bool:
    return isinstance(error, str) and bool(error)


def _is_of_openai(value: Any, error: Any) -> bool:
    is_known = isinstance(error, dict) and set(error) == {"message", "type", "param", "code"}
    return is_known and _has_message(error)


def _is_of_anthropic(value: Any, error: Any) -> bool:
    return value.get("type") == "error" and isinstance(error, dict) and _has_message(error)


def _is_of_cohere(value: Any, error: Any) -> bool:
    message = value.get("message")
    return set(value) <= {"id", "message"} and isinstance(message, str) and bool(message)


def _has_message(error: Mapping[str, Any]) -> bool:
    message = error.get("message")
    return isinstance(message, str) and bool(message) and isinstance(error.get("type"), str)


_IS_ERROR: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    OPENAI.name: _is_of_openai,
    OVMS.name: _is_text,
    ANTHROPIC.name: _is_of_anthropic,
    OLLAMA.name: _is_text,
    COHERE.name: _is_of_cohere,
}


def _judge_lines(answer: Answer) -> str:
    """Checks the last line of an Ollama stream: the end of an answer or of a pull, or an error."""
    try:
        *_, last = [orjson.loads(line) for line in answer.body.splitlines()]
    except ValueError as error:
        return f"a line that is no JSON ({error}): {answer.body[-300:]!r}"
    is_end = last.get("done") is True or last.get("status") == "success" or "error" in last
    return "" if is_end else f"a stream without its end: {answer.body[-300:]!r}"


def _judge_events(path: str, answer: Answer) -> str:
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
    is_end = last == b"[DONE]"
    if dialect_of(path) is ANTHROPIC:
        is_end = orjson.loads(last or b"{}").get("type") in ("message_stop", "error")
    return "" if is_end else f"a stream without its end: {answer.body[-300:]!r}"
