"""Grammars that are tried in another process first: what crashes a compiler, or takes it for ever,
costs only that process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Final

from fastovms.backends.process import Peer
from fastovms.errors import BackendUnavailable
from fastovms.params import Grammar

_MAX_CACHED: Final = 256
_START_TIMEOUT: Final = 60.0
"""Seconds for the process to come up."""


class Trial:
    """Tries one grammar at a time. Thread-safe.

    The process says None when it is ready, and then answers each `Grammar` with what is wrong with
    it, or with nothing. After a fault it gets ready again.

    Args:
        start: starts the process, which happens when there is a grammar to try.
        timeout: seconds that one may take.
    """

    def __init__(self, start: Callable[[], Peer], *, timeout: float) -> None:
        self._start = start
        self._timeout = timeout
        self._peer: Peer | None = None
        self._is_ready = False
        self._turn = Lock()
        self._lock = Lock()  # of what is accepted
        self._accepted: OrderedDict[Grammar, None] = OrderedDict()

    def fault(self, grammar: Grammar) -> str:
        """What is wrong with it; empty = nothing.

        Raises BackendUnavailable: the process does not come up.
        """
        if self._is_accepted(grammar):  # for which nobody should wait while another is tried
            return ""
        with self._turn:
            if self._is_accepted(grammar):
                return ""
            fault = self._ask(grammar)
            if not fault:
                self._accept(grammar)
            return fault

    def close(self) -> None:
        """Ends the process, if it was needed."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.kill()
            peer.connection.close()
            peer.wait()

    def _is_accepted(self, grammar: Grammar) -> bool:
        with self._lock:
            is_accepted = grammar in self._accepted
            if is_accepted:
                self._accepted.move_to_end(grammar)
            return is_accepted

    def _accept(self, grammar: Grammar) -> None:
        with self._lock:
            self._accepted[grammar] = None
            if len(self._accepted) > _MAX_CACHED:
                self._accepted.popitem(last=False)

    def _ask(self, grammar: Grammar) -> str:
        connection = self._ready_connection()
        try:
            connection.send(grammar)
            if connection.poll(self._timeout):
                fault: str = connection.recv()
                self._is_ready = not fault
                return fault
            self.close()
        except (EOFError, OSError):
            self.close()
            return "it is too much for the compiler"
        return "it takes too long to compile"

    def _ready_connection(self) -> Connection[Any, Any]:
        try:
            if self._peer is None:
                self._is_ready = False
                self._peer = self._start()
            connection = self._peer.connection
            if not self._is_ready and not connection.poll(_START_TIMEOUT):
                raise TimeoutError
            if not self._is_ready:
                connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise BackendUnavailable("grammars cannot be compiled now") from error
        return connection
