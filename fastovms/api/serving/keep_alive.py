"""Does what `keep_alive` asks for, of which only 0 does anything: the operator says how long models
stay."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from fastovms.api.serving.served import KnownModel, ServedModels
from fastovms.api.wire.bodies.body import show
from fastovms.errors import InvalidField
from fastovms.http.routing.messages import Request

_DURATION: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h))+")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)")
_MAX_LENGTH: Final = 64

KeepAlive = str | int | float | None


class Departure(NamedTuple):
    """Whether a request has its model leave memory.

    Attributes:
        is_wanted: whether the client wants that.
        happens: whether the model leaves, as soon as it is idle.
        warnings: why it does not, if it is wanted.
    """

    is_wanted: bool
    happens: bool
    warnings: Sequence[str]


@contextmanager
def departure(
    keep_alive: KeepAlive, request: Request, model: KnownModel, models: ServedModels
) -> Iterator[Departure]:
    """Has a model leave behind a request that wants it, where models come and go and the client is
    an operator.

    Raises:
        InvalidField: `keep_alive` is no duration.
    """
    is_wanted, holder = unloads(keep_alive), models.holder
    if not is_wanted:
        yield Departure(False, False, ())
    elif holder is None or not holder.loads_on_demand:
        reason = "this server does not load models on demand"
        yield Departure(True, False, _warnings(model, reason))
    elif not request.is_admin:
        yield Departure(True, False, _warnings(model, "only an operator may unload it"))
    else:
        try:
            yield Departure(True, True, ())
        finally:
            holder.dismiss(model.name)


def _warnings(model: KnownModel, reason: str) -> Sequence[str]:
    return [f"keep_alive changes nothing: {model.name} stays in memory, as {reason}"]


def unloads(keep_alive: KeepAlive) -> bool:
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
