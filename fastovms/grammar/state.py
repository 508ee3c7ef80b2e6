"""The state of a grammar during generation, and the cache of compiled grammars."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from fastovms.errors import SchemaRefused
from fastovms.params import Grammar

_REGEX_DRAWN: Final = "regex parse error:"
_WRONG_REGEX: Final = "error: "


class UnusableGrammar(SchemaRefused):
    """A grammar that is malformed or unsatisfiable. `is_certain` is whether a second trial would
    give the same result."""

    def __init__(self, grammar: Grammar, reason: str, *, is_certain: bool = True) -> None:
        message = f"the {grammar.kind.value} cannot be used: {reason}"
        super().__init__(message, param=grammar.param)
        self.reason = reason
        self.is_certain = is_certain


class UnfinishableGrammar(UnusableGrammar):
    """A grammar that can be compiled but that no text can complete, at least with the tokens so
    far."""


def first_line(error: str) -> str:
    """Returns the first line of llguidance's error message, without the parser's state and the
    grammar that follow. For a regular expression, returns the error below the marked position."""
    lines = error.strip().splitlines() or ["unknown error"]
    found = [line for line in lines if line.startswith(_WRONG_REGEX)]
    if not found or not lines[0].endswith(_REGEX_DRAWN):
        return lines[0]
    place = lines[0].removesuffix(_REGEX_DRAWN).rstrip(": ") or "invalid regex"
    return f"{found[-1].removeprefix(_WRONG_REGEX)} ({place})"


FREE_SECONDS: Final = 0.002
"""Seconds per token that are not counted: most tokens take a twentieth of that."""

MAX_SECONDS: Final = 5.0
"""The counted seconds that all tokens of all samples of a request may take."""


class GrammarTimeBudget:
    """Measures the CPU time of a request's grammar, one `with` statement per token, against a
    limit. `clock` returns the thread's CPU time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._start = 0.0
        self._left = MAX_SECONDS

    @property
    def is_used_up(self) -> bool:
        """Whether the limit is exceeded."""
        return self._left < 0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self._left -= max(0.0, self._clock() - self._start - FREE_SECONDS)


MAX_FORCED_TOKENS: Final = 8192
"""The maximum number of consecutive forced tokens: each step computes all of them, in 1 to 3 ms at
this number."""

TOO_MANY_FORCED: Final = f"more than {MAX_FORCED_TOKENS} tokens would follow without a choice"
_TOO_SLOW: Final = "it takes too long"
_RULED_OUT: Final = "other fields of the request rule out every token that may follow"


class GrammarState:
    """The state of one sample in its grammar; a `LogitsProcessor`."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        matcher: LLMatcher,
        vocab_size: int,
        num_prompt_tokens: int,
        time_budget: GrammarTimeBudget,
        error: str = "",
    ) -> None:
        """
        Args:
            matcher: a copy of the compiled grammar's matcher.
            time_budget: the time limit shared by all samples of the request.
        """
        self._compiled = compiled
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_read = num_prompt_tokens
        self._time_budget = time_budget
        self._error = error

    @property
    def error(self) -> str:
        """Why the grammar cannot continue, for example because it is too complex; "" = no error."""
        if self._error:
            return self._error
        if self._time_budget.is_used_up:
            return _TOO_SLOW
        return first_line(self._matcher.get_error()) if self._matcher.is_error() else ""

    def __call__(self, logits: NDArray[np.float32], token_ids: array[int]) -> None:
        if self._time_budget.is_used_up:
            return
        words = np.empty((self._vocab_size + 31) // 32, np.int32)
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_error():
                return
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        logits[: bits.size][bits[: logits.size] == 0] = -np.inf
        logits[bits.size :] = -np.inf

    def give_up(self) -> None:
        """Records that other settings of the request exclude every token that the grammar
        allows."""
        if not self._matcher.is_accepting():
            self._error = _RULED_OUT

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        """Returns the tokens that must follow `token_ids`, as long as the grammar leaves no
        choice."""
        if self._error or self._time_budget.is_used_up:
            return []
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return []
            forced: list[int] = self._matcher.compute_ff_tokens()
        if len(forced) > MAX_FORCED_TOKENS:
            self._error = TOO_MANY_FORCED
        return forced

    def scout(self, token_ids: array[int]) -> GrammarScout | None:
        """Returns a scout positioned after `token_ids`; None if the grammar or its time limit has
        ended."""
        if self._error or self._time_budget.is_used_up:
            return None
        with self._time_budget:
            self._read(token_ids)
            if self._matcher.is_stopped():
                return None
            return GrammarScout(self._matcher.deep_copy(), self._time_budget)

    def __copy__(self) -> GrammarState:
        return GrammarState(
            self._compiled,
            self._matcher.deep_copy(),
            self._vocab_size,
            self._num_read,
            self._time_budget,
            self._error,
        )

    def _read(self, token_ids: array[int]) -> None:
        if len(token_ids) > self._num_read:
            self._matcher.consume_tokens(token_ids[self._num_read :].tolist())
            self._compiled.num_followed += len(token_ids) - self._num_read
            self._num_read = len(token_ids)


class GrammarScout:
    """Checks draft tokens against a sample's grammar, on a copy of its matcher."""

    def __init__(self, matcher: LLMatcher, time_budget: GrammarTimeBudget) -> None:
        self._matcher = matcher
        self._time_budget = time_budget

    def follow(self, token_ids: list[int]) -> int:
        """Advances over tokens, up to the first one that the grammar does not allow. Returns the
        number of accepted tokens."""
        if self._time_budget.is_used_up:
            return 0
        with self._time_budget:
            return int(self._matcher.try_consume_tokens(token_ids))

    def forced_tokens(self) -> list[int]:
        """Returns the tokens that must follow, as long as only one continuation is possible."""
        if self._time_budget.is_used_up or self._matcher.is_stopped():
            return []
        with self._time_budget:
            forced: list[int] = self._matcher.compute_ff_tokens()
        return forced


MAX_CACHED_BYTES: Final = 64 * 2**20
"""The maximum memory of compiled grammars in bytes: a usual schema takes 0.2 MB, a hostile one up
to 48 MB."""

_BYTES_PER_TOKEN: Final = 2048
"""The maximum bytes by which a grammar grows per token, because lexer states are kept; mostly
nothing is added."""


@dataclass(slots=True, eq=False)
class CompiledGrammar:
    """A compiled grammar in its initial state.

    Attributes:
        matcher: must be copied before use. Copies share its lexer, which grows with use.
        num_bytes: its initial size in bytes, including its source.
        num_followed: the number of tokens processed by its copies.
    """

    matcher: LLMatcher
    num_bytes: int
    num_followed: int = 0

    @property
    def size(self) -> int:
        """An upper estimate of its current size in bytes."""
        return self.num_bytes + self.num_followed * _BYTES_PER_TOKEN


class GrammarCache:
    """A cache of the most recently used grammars. Thread-safe. `max_bytes` limits the size of all
    grammars together. A grammar that has grown to half of it is dropped, and compiled again at the
    next request."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._sizes: dict[Grammar, int] = {}  # sizes at the last use; a grammar grows with its use
        self._total = 0  # the sum of `_sizes`
        self._lock = Lock()

    def get(self, grammar: Grammar) -> CompiledGrammar | None:
        """Returns the compiled grammar; None = not cached. Counts as a use."""
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
        """Stores a compiled grammar, evicting the least recently used ones if needed."""
        with self._lock:
            self._entries[grammar] = compiled
            self._entries.move_to_end(grammar)
            self._count(grammar, compiled.size)
            while self._total > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def __len__(self) -> int:
        return len(self._entries)

    def check(self) -> None:
        """Asserts that the limits and counts are consistent."""
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
