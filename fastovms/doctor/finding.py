"""Declares what an examination finds, and how bad it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding. Only a problem keeps a server from running as configured."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    Attributes:
        topic: what it is of, such as "cores".
        text: one sentence, without its full stop.
        advice: what to do about it; "" = nothing.
    """

    level: Level
    topic: str
    text: str
    advice: str = ""
