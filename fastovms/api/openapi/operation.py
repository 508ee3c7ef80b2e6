"""Declares what the documentation tells of a route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Example = Mapping[str, Any]


class Nothing:
    """Stands for an answer without content."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a route does.

    Attributes:
        answer: the type of what it answers with 200; None = it refuses everything.
        media_type: what the answer is, where it is not JSON.
        body: the type that reads the request's body.
        body_type: what the body is, where it is not JSON.
        required: the fields of the body that must be there.
        events: the type of the frames of a streamed answer; None = it never streams.
        lines: the type of its lines, where it is streamed as JSON lines.
        query: the types of the query's parameters.
        examples: bodies by what they show; the model's name is added to each that has one.
        answered: an answer, as an example.
    """

    summary: str
    answer: Any = None
    media_type: str = "application/json"
    body: type | None = None
    body_type: str = "application/json"
    required: tuple[str, ...] = ()
    events: Any = None
    lines: Any = None
    query: Mapping[str, Any] | None = None
    examples: Mapping[str, Example] | None = None
    answered: Example | None = None
