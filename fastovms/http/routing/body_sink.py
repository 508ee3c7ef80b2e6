"""Declares what takes a request's body piece by piece, for bodies that never lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BodySink(Protocol):
    """Takes the body of one request while it arrives. All of it runs on the event loop; what takes
    long, such as writing to a disk, runs elsewhere.

    Attributes:
        max_size: the most bytes of a body; 413 beyond it.
        fault: the status and the message of an answer that refuses the rest of the body; None =
            nothing is wrong so far.
        on_change: is called when `is_full` turns False, or `fault` turns into something.
    """

    max_size: int
    fault: tuple[int, str] | None
    on_change: Callable[[], None] | None

    @property
    def min_rate(self) -> float:
        """Bytes a second that the client must send now."""

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that no more should be read from the client."""

    def write(self, piece: bytes) -> None:
        """Takes the next piece."""

    def close(self) -> None:
        """Ends it when the request is over, answered or not: what nobody has taken over is thrown
        away. A second time it does nothing."""
