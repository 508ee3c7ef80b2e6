"""Checks ids that clients make up."""

from __future__ import annotations

from typing import Final

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.quoting import is_id

MAX_ID: Final = 256
"""The most characters of an id."""


def check_id(text: str, name: str) -> str:
    """Returns the id.

    Raises:
        InvalidField: it could not stand in a path, in a header or on a line of a log.
    """
    if not is_id(text, MAX_ID):
        raise InvalidField(
            f"{name} must have 1 to {MAX_ID} visible ASCII characters, not {show(text)}", param=name
        )
    return text
