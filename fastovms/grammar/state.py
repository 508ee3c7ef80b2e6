"""The state of a grammar along a text, and the cache of compiled grammars."""

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

from fastovms.errors import InvalidField
from fastovms.params import Grammar, Refusal

_REGEX_DRAWN: Final = "regex parse error:"
_WRONG_REGEX: Final = "error: "


def dead_end(grammar: Grammar, error: str) -> Refusal:
    """Returns the error that no sample of a grammar can be finished, which only trying could
    tell."""
    return Refusal(
        f"{grammar.param}: the {grammar.kind.value} cannot go on: {error}", param=grammar.param
    )


class UnusableGrammar(InvalidField):
    """A grammar that is malformed or impossible.

    Attributes:
        reason: what is wrong with it.
        is_certain: whether that would be found again.
    """

    def __init__(self, grammar: Grammar, reason: str, *, is_certain: bool = True) -> None:
        message = f"the {grammar.kind.value} cannot be used: {reason}"
        super().__init__(message, param=grammar.param)
        self.reason = reason
        self.is_certain = is_certain


class UnfinishableGrammar(UnusableGrammar):
    """A grammar that can be compiled, but not followed. With other tokens perhaps it can."""


def first_line(error: str) -> str:
    """Returns the first line of a message: the parser's state and the whole grammar follow. The
    error in a regular expression is printed below a drawing of it."""
    lines = error.strip().splitlines() or ["unknown error"]
    found = [line for line in lines if line.startswith(_WRONG_REGEX)]
    if not found or not lines[0].endswith(_REGEX_DRAWN):
        return lines[0]
    place = lines[0].removesuffix(_REGEX_DRAWN).rstrip(": ") or "invalid regex"
    return f"{found[-1].removeprefix(_WRONG_REGEX)} ({place})"


FREE_SECONDS: Final = 0.002
"""Seconds that a token may take without being counted: most take a twentieth of that."""

MAX_SECONDS: Final = 5.0
"""Seconds beyond what is free that all tokens of all samples of a request may take."""


class GrammarTimeBudget:
    """Measures what is done in a `with` statement, a token at a time, and knows when a request has
    used up its time.

    Args:
        clock: returns the seconds that the thread has computed.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._start = 0.0
        self._left = MAX_SECONDS

    @property
    def is_used_up(self) -> bool:
        return self._left < 0

    def __enter__(self) -> None:
        self._start = self._clock()

    def __exit__(self, *_: object) -> None:
        self._left -= max(0.0, self._clock() - self._start - FREE_SECONDS)


# Follows one sample through its grammar: masks the tokens that may not follow, and finds those
# that must.


MAX_FORCED_TOKENS: Final = 8192
"""The most tokens that may follow without a choice: each step looks at all of them, 1 to 3 ms
here."""

TOO_MANY_FORCED: Final = f"more than {MAX_FORCED_TOKENS} tokens would follow without a choice"
_TOO_SLOW: Final = "it takes too long"
_RULED_OUT: Final = "other fields of the request rule out every token that may follow"


class GrammarState:
    """The place of one sample in its grammar. It is a `LogitsProcessor`."""

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
            matcher: a copy of the compiled one.
            time_budget: that of all samples of the request.
        """
        self._compiled = compiled
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_read = num_prompt_tokens
        self._time_budget = time_budget
        self._error = error

    @property
    def error(self) -> str:
        """Why the grammar cannot go on (too complex, say); empty while all is well."""
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
        """Takes note that something else in the request rules out all that the grammar allows
        now."""
        if not self._matcher.is_accepting():
            self._error = _RULED_OUT

    def forced_tokens(self, token_ids: array[int]) -> list[int]:
        """Returns the tokens that must follow `token_ids`, where the grammar leaves no choice."""
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
        """Returns the guesses after `token_ids` that the grammar allows; None if text or time have
        run out."""
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
    """Follows a guess through a grammar, ahead of the sample, on a copy of its matcher."""

    def __init__(self, matcher: LLMatcher, time_budget: GrammarTimeBudget) -> None:
        self._matcher = matcher
        self._time_budget = time_budget

    def follow(self, token_ids: list[int]) -> int:
        """Goes on with tokens, up to the first that the grammar bars. Returns how many it went."""
        if self._time_budget.is_used_up:
            return 0
        with self._time_budget:
            return int(self._matcher.try_consume_tokens(token_ids))

    def forced_tokens(self) -> list[int]:
        """Returns the tokens that must follow, if only one continuation is possible."""
        if self._time_budget.is_used_up or self._matcher.is_stopped():
            return []
        with self._time_budget:
            forced: list[int] = self._matcher.compute_ff_tokens()
        return forced


# Keeps compiled grammars, within a number of bytes.


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
        """The bytes that it may hold by now."""
        return self.num_bytes + self.num_followed * _BYTES_PER_TOKEN


class GrammarCache:
    """Keeps the grammars that were asked for last. It is thread-safe.

    Args:
        max_bytes: what they may hold together. One that has reached half of this by being followed
            is forgotten, and compiled again at the next request.
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
