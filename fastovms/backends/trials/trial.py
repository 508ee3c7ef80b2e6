"""Talks to a process that tries grammars: what crashes a compiler, or takes it for ever, costs only
that process."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from fastovms.backends.processes.process import Peer, fate
from fastovms.errors import BackendUnavailable
from fastovms.params import Grammar

TOO_MUCH: Final = "it is too much for the compiler"
TOO_SLOW: Final = "it takes too long to compile"

_OWN_SIGNALS: Final = (
    signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP,
)  # fmt: skip
"""The signals by which a compiler ends its own process. Others come from outside, as the SIGKILL of
a system that is out of memory does."""

_SIGNALS: Final = {fate(-number): number for number in signal.Signals}
"""The signals by which a process was ended, by what is said of its end."""

_START_TIMEOUT: Final = 60.0
"""Seconds in which the process must come up."""


class Verdict(NamedTuple):
    """What a process says of a grammar.

    Attributes:
        fault: what is wrong with it; empty = nothing.
        num_bytes: how much the compiled grammar holds, as far as the process has measured it.
        is_slow: whether nothing is wrong with it but the time that it takes.
        has_died: whether the process has not survived it.
        is_certain: whether another trial would say the same. What has ended this one may otherwise
            lie outside the grammar: a machine that is busy, or out of memory.
    """

    fault: str = ""
    num_bytes: int = 0
    is_slow: bool = False
    has_died: bool = False
    is_certain: bool = True


def verdict_on_death(number: int | None) -> Verdict:
    """Returns the verdict on a grammar whose process was ended by this signal; None = in another
    way."""
    if number == signal.SIGPROF:  # see `limit_time`
        return Verdict(TOO_SLOW, is_slow=True)
    if number == signal.SIGALRM:
        return Verdict(TOO_SLOW, is_slow=True, is_certain=False)
    return Verdict(TOO_MUCH, has_died=True, is_certain=number in _OWN_SIGNALS)


class TakesLonger(Exception):
    """A grammar needs more time for its trial than it was given."""


class Trial:
    """Tries one grammar at a time, on one thread. `kill` alone may be called on others.

    The process says None whenever it is ready, gets a number and a `Grammar`, and answers with the
    number and a `Verdict`. A process that has ended is replaced at once.

    Args:
        start: starts the process.
        timeout: seconds after which a process that says nothing is given up.

    Attributes:
        num_deaths: how many processes have not survived their grammar.
    """

    def __init__(self, start: Callable[[], Peer], *, timeout: float) -> None:
        self._start = start
        self._timeout = timeout
        self._peer: Peer | None = None
        self._is_ready = False
        self._is_closed = False
        self._number = 0
        self.num_deaths = 0

    def warm_up(self) -> None:
        """Starts the process, if it does not run, without waiting until it is ready. Where that
        fails, `ask` tries again."""
        with contextlib.suppress(OSError):
            self._start_process()

    def ask(self, grammar: Grammar) -> Verdict:
        """Tries a grammar.

        Raises:
            BackendUnavailable: the process does not come up.
        """
        connection = self._ready_connection()
        self._number += 1
        try:
            connection.send((self._number, grammar))
            self._is_ready = False
            verdict = self._answer(connection)
        except (EOFError, OSError):
            ending = "" if self._peer is None else self._peer.wait()
            verdict = verdict_on_death(_SIGNALS.get(ending))
            self._replace()
        if verdict is None:
            verdict = Verdict(TOO_SLOW, is_slow=True, is_certain=False)
            self._replace()
        self.num_deaths += verdict.has_died
        return verdict

    def kill(self) -> None:
        """Ends the process and lets no other be started. Whoever waits for it hears of its end."""
        self._is_closed = True
        peer = self._peer
        if peer is not None:
            peer.kill()

    def close(self) -> None:
        """Ends the process, if it runs."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.kill()
            peer.connection.close()
            peer.wait()

    def _replace(self) -> None:
        self.close()
        self.warm_up()

    def _start_process(self) -> None:
        if self._peer is None and not self._is_closed:
            self._is_ready = False
            self._peer = self._start()

    def _answer(self, connection: Connection[Any, Any]) -> Verdict | None:
        """Returns the verdict on the last grammar; None if there is none in time."""
        deadline = time.monotonic() + self._timeout
        while connection.poll(max(0.0, deadline - time.monotonic())):
            message = connection.recv()
            if message is None:
                self._is_ready = True
            elif message[0] == self._number:  # not one on which nobody waits any more
                verdict: Verdict = message[1]
                return verdict
        return None

    def _ready_connection(self) -> Connection[Any, Any]:
        try:
            self._start_process()
            if self._peer is None:
                raise BackendUnavailable("the server is shutting down")
            connection = self._peer.connection
            while not self._is_ready:
                if not connection.poll(_START_TIMEOUT):
                    raise TimeoutError
                self._is_ready = connection.recv() is None
        except (EOFError, OSError) as error:
            self.close()
            raise BackendUnavailable("grammars cannot be compiled now") from error
        return connection
