"""Tells clients, and the log, what of a request the server does not do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from fastovms.http.routing.messages import HeaderPairs

logger = logging.getLogger(__name__)

_MAX_LENGTH: Final = 1000
_CODE: Final = "299"
"""A persistent warning about anything (RFC 7234, 5.5.7)."""


def passed_over(names: Sequence[str]) -> Sequence[str]:
    """Returns the warning that parts of a request are passed over: agents offer every server the
    tools of OpenAI's."""
    return [f"passed over, as this server does not have it: {', '.join(names)}"] if names else ()


def warning_headers(warnings: Sequence[str], request_id: str) -> HeaderPairs:
    """Returns a header with the warnings, if there are any, and logs them.

    Args:
        request_id: what the log calls the request.
    """
    if not warnings:
        return ()
    text = "; ".join(warnings)[:_MAX_LENGTH]
    logger.warning("request %s: %s", request_id, text)
    quoted = text.replace("\\", "").replace('"', "'")
    return (("Warning", f'{_CODE} - "{quoted}"'),)
