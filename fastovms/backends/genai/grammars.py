"""Grammars for the pipeline, which is handed none that has not been tried."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, Final

from fastovms.backends.genai.process import ChildProcess, Peer
from fastovms.engine.grammar import GrammarCompiler
from fastovms.errors import BackendUnavailable, InvalidField
from fastovms.params import Grammar

_MAX_CACHED: Final = 256
_TIMEOUT: Final = 5.0
"""Seconds that compiling a grammar may take."""

_START_TIMEOUT: Final = 60.0
"""Seconds for the process to come up."""


def _start_trial() -> Peer:
    return ChildProcess("fastovms.backends.genai.grammar_trial")


class TriedGrammars:
    """Thread-safe.

    Args:
        compiler: looks at every grammar first, as it does for the paged engine. It says what is
            wrong in better words, and has limits for what is nested.
    """

    def __init__(
        self,
        compiler: GrammarCompiler | None,
        *,
        start: Callable[[], Peer] = _start_trial,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._compiler = compiler
        self._start = start
        self._timeout = timeout
        self._peer: Peer | None = None
        self._is_ready = False
        self._lock = Lock()
        self._accepted: OrderedDict[Grammar, None] = OrderedDict()

    def compile(self, grammar: Grammar) -> None:
        """See `Backend.compile_grammar`."""
        if self._compiler is not None:
            self._compiler.compile(grammar)
        with self._lock:
            if grammar not in self._accepted:
                self._try(grammar)
                self._accepted[grammar] = None
                if len(self._accepted) > _MAX_CACHED:
                    self._accepted.popitem(last=False)

    def close(self) -> None:
        """Ends the process, if it was needed."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.kill()
            peer.connection.close()
            peer.wait()

    def _try(self, grammar: Grammar) -> None:
        connection = self._ready_connection()
        fault = "it takes too long to compile"
        try:
            connection.send(grammar)
            if connection.poll(self._timeout):
                fault = connection.recv()
                self._is_ready = not fault
            else:
                self.close()
        except (EOFError, ConnectionError):
            fault = "it is too much for the compiler"
            self.close()
        if fault:
            raise InvalidField(
                f"the {grammar.kind.value} cannot be used by the genai backend, which runs this "
                f"model: {fault}",
                param=grammar.param,
            )

    def _ready_connection(self) -> Connection[Any, Any]:
        """Raises BackendUnavailable when the process does not come up."""
        if self._peer is None:
            self._peer = self._start()
            self._is_ready = False
        connection = self._peer.connection
        try:
            if not self._is_ready and not connection.poll(_START_TIMEOUT):
                raise TimeoutError
            if not self._is_ready:
                connection.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise BackendUnavailable("grammars cannot be compiled now") from error
        return connection
