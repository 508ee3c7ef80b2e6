"""Makes ids that carry an affinity key: eight hexadecimal digits that all ids of one chain of
responses, or of one conversation, begin with.

A balancer in front of several replicas sends requests with equal keys to the same replica, which
has computed what they continue (`deploy/envoy/affinity.lua` reads the keys). A key tells nobody
anything, and an id has 96 random bits beside it, so that it cannot be guessed.
"""

from __future__ import annotations

import re
from typing import Final

from fastovms.http.routing.messages import Headers

AFFINITY_HEADER: Final = "X-Fastovms-Affinity"
"""Carries the key by which a balancer has chosen this replica."""

_NUM_DIGITS: Final = 8
_KEY: Final = re.compile(r"[0-9a-f]{8}")
_ID: Final = re.compile(r"[a-z]+[_-]([0-9a-f]{8})[0-9a-f]{24}")


def with_affinity(new_id: str, headers: Headers, continued: str | None = None) -> str:
    """Returns an id with the key of what it continues, else with that of the request.

    Args:
        new_id: 32 random hexadecimal digits; the first 8 of them are the key where there is none.
        headers: those of the request that makes the id.
        continued: the id of the response or the conversation that is continued.
    """
    key = _key_of(continued) or headers.get(AFFINITY_HEADER) or ""
    return key + new_id[_NUM_DIGITS:] if _KEY.fullmatch(key) else new_id


def _key_of(id: str | None) -> str | None:
    """Returns the key of an id made here; an id that a client has made up carries none."""
    match = _ID.fullmatch(id or "")
    return None if match is None else match[1]
