"""Keeps compiled grammars, within a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from llguidance import LLMatcher

from fastovms.params import Grammar

MAX_CACHED_BYTES: Final = 64 * 2**20
"""The most bytes that compiled grammars may hold: one of a usual schema holds 0.2 MB, one of a
hostile one up to 48 MB."""

_BYTES_PER_TOKEN: Final = 2048
"""What following a grammar adds to it, for each token: the states of its lexer are kept with it.
This is the most; mostly nothing is added."""


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """A grammar as it is at its start.

    Attributes:
        matcher: to be copied before use. Its copies share its lexer, which grows as they go on.
        num_bytes: how much it held when it was new, its source included.
        num_followed: how many tokens its copies have read.
    """

    matcher: LLMatcher
    num_bytes: int
    num_followed: int = 0

    @property
    def size(self) -> int:
        """How many bytes it may hold by now."""
        return self.num_bytes + self.num_followed * _BYTES_PER_TOKEN


class GrammarCache:
    """Keeps the grammars that were asked for last. It is thread-safe.

    Args:
        max_bytes: what they may hold together. One that has come to half of this by being followed
            is forgotten, and compiled anew when it is asked for.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._sizes: dict[Grammar, int] = {}  # of each grammar when it was last asked for
        self._total = 0  # the sum of `_sizes`
        self._lock = Lock()

    def get(self, grammar: Grammar) -> CompiledGrammar | None:
        with self._lock:
            entry = self._entries.get(grammar)
            if entry is None:
                return None
            if entry.num_followed and entry.size > self._max_bytes // 2:
                self._remove(grammar)
                return None
            self._entries.move_to_end(grammar)
            self._count(grammar, entry.size)
            return entry

    def put(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        with self._lock:
            self._entries[grammar] = compiled
            self._entries.move_to_end(grammar)
            self._count(grammar, compiled.size)
            while self._total > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def __len__(self) -> int:
        return len(self._entries)

    def check(self) -> None:
        """Asserts that no more is kept than may be, and that the books balance."""
        with self._lock:
            assert self._sizes.keys() == self._entries.keys()
            assert self._total == sum(self._sizes.values())
            new = sum(entry.num_bytes for entry in self._entries.values())
            assert new <= self._max_bytes

    def _count(self, grammar: Grammar, size: int) -> None:
        self._total += size - self._sizes.get(grammar, 0)
        self._sizes[grammar] = size

    def _remove(self, grammar: Grammar) -> None:
        del self._entries[grammar]
        self._total -= self._sizes.pop(grammar)
