"""Declares what access logs and metrics are told of a request that is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fastovms.http.routing.messages import Request


class Exchange(NamedTuple):
    """A request that is over, for access logs and metrics.

    Attributes:
        status: 499 when the client went away before an answer began.
        num_bytes: how many were written for it, heads and framing included.
        duration: seconds since its head was complete.
        completed: False when the answer was cut short.
    """

    request: Request
    status: int
    num_bytes: int
    duration: float
    completed: bool


Observer = Callable[[Exchange], None]
