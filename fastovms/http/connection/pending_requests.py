"""Keeps the requests of one connection that wait for their answers (pipelining), in the order in
which they came."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from fastovms.http.connection.server_state import ServerState
from fastovms.http.routing.messages import Handler, Request, Response

_MAX_AT_TURNSTILE = 512


class PendingRequest(NamedTuple):
    """A request and who answers it.

    Attributes:
        final: whether the connection ends with the answer.
        linger: whether the client may still be sending then.
    """

    request: Request
    answer: Handler | Response
    final: bool
    linger: bool = False


class PendingRequests(deque[PendingRequest]):
    """The queue of a connection. Their bodies count against the memory of all bodies."""

    __slots__ = ()

    def is_full(self, server: ServerState, *, is_blocked: bool) -> bool:
        """Returns whether no further request may wait.

        Args:
            is_blocked: whether they wait for an answer to this client, or for it to read. Where
                they wait for nothing but other clients, all that one read brings may wait.
        """
        most = server.config.max_pipelined
        return len(self) >= (most if is_blocked else max(_MAX_AT_TURNSTILE, most))

    def drop(self, server: ServerState) -> None:
        """Forgets all of them, and frees the memory of their bodies."""
        for pending in self:
            server.give_back_body(pending.request)
        self.clear()
