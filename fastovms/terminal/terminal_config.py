"""Declares how a chat in a terminal begins. Each default stands here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TerminalConfig:
    """How a chat begins; its commands change most of it.

    Attributes:
        model: what requests ask for; None = the first that the server lists.
        api_key: None = none.
        insecure: accept any certificate.
        system: the first message; None = there is none.
    """

    model: str | None = None
    api_key: str | None = None
    insecure: bool = False
    system: str | None = None
