"""Grammars for the paged engine. Few characters can keep their compiler busy for hours (a choice of
some `multipleOf`, a few hundred `patternProperties`), so it is another process that takes what is
not plain first."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from fastovms.backends.process import ChildProcess, Peer
from fastovms.backends.trial import Trial
from fastovms.engine.grammar import GrammarCompiler
from fastovms.errors import InvalidField
from fastovms.params import Grammar, GrammarKind

_TIMEOUT: Final = 30.0
"""Seconds for an answer. The process ends itself after less time of a processor."""

_MAX_PLAIN: Final = 16 * 1024
"""Characters of what is never slow. A choice may have more: it costs in proportion."""

_MAX_SHORT: Final = 2 * 1024
"""Characters: most of those that people write."""

_PLAIN_KINDS: Final = {
    GrammarKind.JSON_SCHEMA,
    GrammarKind.JSON_OBJECT,
    GrammarKind.TAGGED_RULES,
    GrammarKind.CHOICE,
}
_SLOW_KEYWORDS: Final = re.compile(
    r'"(?:pattern|patternProperties|multipleOf|allOf|not|if|contains|propertyNames|unevaluated\w+)"'
)


def _start_trial() -> Peer:
    return ChildProcess("fastovms.backends.grammar_trial")


class GuardedGrammars:
    """Thread-safe."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        *,
        start: Callable[[], Peer] = _start_trial,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._compiler = compiler
        self._short_trial = Trial(start, timeout=timeout)
        self._long_trial = Trial(start, timeout=timeout)

    def compile(self, grammar: Grammar) -> None:
        """See `Backend.compile_grammar`."""
        if not is_plain(grammar):
            # One is tried at a time: the short do not wait for the long.
            is_short = len(grammar.source) + len(grammar.frame) <= _MAX_SHORT
            fault = (self._short_trial if is_short else self._long_trial).fault(grammar)
            if fault:
                raise InvalidField(
                    f"the {grammar.kind.value} cannot be used: {fault}", param=grammar.param
                )
        self._compiler.compile(grammar)

    def close(self) -> None:
        """Ends the processes, if they were needed."""
        self._short_trial.close()
        self._long_trial.close()


def is_plain(grammar: Grammar) -> bool:
    """Whether it is of a form that is compiled in an instant."""
    if grammar.kind not in _PLAIN_KINDS:
        return False
    if grammar.kind is GrammarKind.CHOICE:
        return len(grammar.frame) <= _MAX_PLAIN
    return (
        len(grammar.source) + len(grammar.frame) <= _MAX_PLAIN
        and _SLOW_KEYWORDS.search(grammar.source) is None
        and _SLOW_KEYWORDS.search(grammar.frame) is None
    )
