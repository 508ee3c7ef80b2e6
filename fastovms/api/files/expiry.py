"""Reads after how long a file is to be deleted, as OpenAI's `expires_after` says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField

_ANCHOR: Final = "created_at"
_SHORTEST: Final = 3600
_LONGEST: Final = 30 * 24 * 3600

BATCH_AGE: Final = 30 * 24 * 3600
"""Seconds after which the input of a batch and its results expire where clients say nothing, as
OpenAI's do: they would fill the disk of a server that runs a batch a night."""


def seconds_of(given: Mapping[str, Any] | None, name: str) -> int | None:
    """Returns the seconds; None = nothing is given.

    Args:
        name: of the field, for messages.

    Raises:
        InvalidField: a member is wrong.
    """
    if given is None:
        return None
    anchor, seconds = given.get("anchor"), given.get("seconds")
    if anchor != _ANCHOR:
        raise InvalidField(
            f"{name}.anchor must be {show(_ANCHOR)}, not {show(anchor)}", param=f"{name}.anchor"
        )
    if type(seconds) is not int or not _SHORTEST <= seconds <= _LONGEST:
        raise InvalidField(
            f"{name}.seconds must be an integer from {_SHORTEST} to {_LONGEST}, not "
            f"{show(seconds)}",
            param=f"{name}.seconds",
        )
    return seconds
