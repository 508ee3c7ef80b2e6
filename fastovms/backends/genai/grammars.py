"""Grammars for the pipeline, which is handed none that has not been tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastovms.backends.guarded_grammars import GuardedGrammars
from fastovms.backends.process import ChildProcess, Peer
from fastovms.backends.trial import Trial
from fastovms.errors import InvalidField
from fastovms.params import Grammar

_TIMEOUT: Final = 5.0
"""Seconds that compiling a grammar may take."""


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
        compiler: GuardedGrammars | None,
        *,
        start: Callable[[], Peer] = _start_trial,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._compiler = compiler
        self._trial = Trial(start, timeout=timeout)

    def compile(self, grammar: Grammar) -> None:
        """See `Backend.compile_grammar`."""
        if self._compiler is not None:
            self._compiler.compile(grammar)
        fault = self._trial.fault(grammar)
        if fault:
            raise InvalidField(
                f"the {grammar.kind.value} cannot be used by the genai backend, which runs this "
                f"model: {fault}",
                param=grammar.param,
            )

    def close(self) -> None:
        """Ends the processes, if they were needed."""
        self._trial.close()
        if self._compiler is not None:
            self._compiler.close()
