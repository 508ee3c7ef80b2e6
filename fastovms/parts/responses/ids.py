"""Generates the ids of responses, items and calls.

A load balancer in front of several replicas sends requests with equal affinity keys to the same
replica, whose prefix cache has the earlier turns (`deploy/envoy/affinity.lua` reads the keys). A
key reveals nothing, and an id has 96 further random bits, so that it cannot be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from typing import Final

from fastovms.api.dialect import Dialect
from fastovms.http.messages import Headers
from fastovms.parts.responses.input import NewId
from fastovms.parts.responses.request import ResponsesRequest

AFFINITY_HEADER: Final = "X-Fastovms-Affinity"
"""The header with the affinity key by which a load balancer has chosen this replica."""
_NUM_DIGITS: Final = 8
_KEY: Final = re.compile(r"[0-9a-f]{8}")
_ID: Final = re.compile(r"[a-z]+[_-]([0-9a-f]{8})[0-9a-f]{24}")
_RESPONSE_IDS: Final = ("resp_", "resp-")
_ID_SIZE: Final = 16
"""The number of random bytes of an id."""


def with_affinity(new_id: str, headers: Headers, continued: str | None = None) -> str:
    """Returns an id that contains the affinity key of the continued response, or else of the
    request.

    Args:
        new_id: 32 random hexadecimal digits, of which the first 8 are the key if there is no other.
        headers: the headers of the request.
        continued: the id of the response or conversation that is continued; None = none.
    """
    made_here = _ID.fullmatch(continued or "")  # ids chosen by clients contain no affinity key
    key = made_here[1] if made_here else headers.get(AFFINITY_HEADER) or ""
    return key + new_id[_NUM_DIGITS:] if _KEY.fullmatch(key) else new_id


def id_prefix(body: ResponsesRequest, dialect: Dialect) -> str:
    """Returns the prefix of new response ids in a dialect; "" if the client chooses the whole id,
    as in vLLM."""
    is_whole = (body.request_id or "").startswith(_RESPONSE_IDS)
    return "" if is_whole else f"resp{dialect.responses.id_separator}"


def numbered_ids(key: str) -> Callable[[], str]:
    """Returns a function that returns the next id, of 32 hexadecimal digits, of a sequence that
    depends only on the key, so that every process generates the same ids."""
    numbers = count()

    def new_id() -> str:
        text = f"{next(numbers)} {key}".encode()
        return blake2b(text, digest_size=_ID_SIZE).hexdigest()

    return new_id


def item_id_factory(new_id: Callable[[], str], dialect: Dialect) -> NewId:
    """Returns a function that generates item ids in the dialect's format."""
    separator = dialect.responses.id_separator
    return lambda prefix: f"{prefix}{separator}{new_id()}"
