"""Reads `keep_alive`, of which only 0 does anything: the operator says how long models stay."""

from __future__ import annotations

import re
from typing import Final

from fastovms.api.wire.body import show
from fastovms.errors import InvalidField

_DURATION: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_MAX_LENGTH: Final = 64


def unloads(keep_alive: str | float | None) -> bool:
    """Returns whether the model is to leave memory at once: for a duration of nothing, be it a
    number of seconds or Go's notation, such as "0s".

    Raises:
        InvalidField: it is no duration.
    """
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    text = keep_alive.strip()
    is_duration = _DURATION.fullmatch(text) or _NUMBER.fullmatch(text)
    if len(text) > _MAX_LENGTH or not is_duration:
        raise InvalidField(
            'keep_alive must be a number of seconds or a duration such as "5m" or "1h30m", not '
            f"{show(keep_alive)}",
            param="keep_alive",
        )
    return not re.search(r"[1-9]", text)
