"""Seals text for its way through a client, as `encrypted_content` or `signature`: reasoning, and
summaries of what came before. There is no secret in it: the client has, or has had, what it tells
of."""

from __future__ import annotations

import base64
from typing import Final

_SUMMARY: Final = "fastovms-summary-1."
"""What a sealed summary begins with, so that it is told from those of other servers."""

_BEFORE_SUMMARY: Final = "Summary of the conversation so far:"


def seal(reasoning: str) -> str:
    """Returns reasoning as `encrypted_content`, for clients that keep it and show it to nobody."""
    return base64.b64encode(reasoning.encode()).decode()


def unseal(content: str) -> str:
    """Returns the text of sealed reasoning; nothing if another server has made it."""
    try:
        return base64.b64decode(content, validate=True).decode()
    except ValueError:
        return ""


def seal_summary(summary: str) -> str:
    """Returns the `encrypted_content` of a compaction."""
    return _SUMMARY + seal(summary)


def unseal_summary(content: str) -> str:
    """Returns the text of a sealed summary; nothing if another server has made it."""
    return unseal(content.removeprefix(_SUMMARY)) if content.startswith(_SUMMARY) else ""


def told_summary(content: str) -> str:
    """Returns what a model is told of a sealed summary."""
    return told_text(unseal_summary(content))


def told_text(summary: str) -> str:
    """Returns what a model is told of a summary."""
    return f"{_BEFORE_SUMMARY}\n{summary}"
