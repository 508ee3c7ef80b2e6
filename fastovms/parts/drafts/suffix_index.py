"""Drafts from earlier text: an index of token suffixes."""

from __future__ import annotations

import logging
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastovms.parts.drafts.suffix_layout import (
    AFTER,
    BEFORE,
    CHAIN,
    FORCED,
    MAX_MATCH,
    NUM_COLUMNS,
    NUM_KINDS,
    ORDERS,
    SPACE,
)

logger = logging.getLogger(__name__)

Kernel = Callable[..., Any]


class SuffixFunctions:
    """The compiled kernels of a model's suffix indexes. A server loads them after the model, and
    there are no lookups until then; otherwise the first use loads them.

    Attributes:
        extend, look_up, learn: see `suffix_kernels`. May be called only after `are_there` has
            returned True.
    """

    extend: Kernel
    look_up: Kernel
    learn: Kernel

    def __init__(self) -> None:
        self._are_loaded = False
        self._are_awaited = True

    def are_there(self) -> bool:
        """Returns whether the kernels are loaded; loads them now unless that is deferred."""
        if not self._are_loaded and self._are_awaited:
            self.load()
        return self._are_loaded

    def load(self) -> None:
        """Compiles the kernels, or loads them from the cache."""
        from fastovms.parts.drafts import suffix_kernels

        self.extend = suffix_kernels.extend
        self.look_up = suffix_kernels.look_up
        self.learn = suffix_kernels.learn
        self._are_loaded = True

    def defer(self) -> None:
        """Disables lookups until `try_to_load` has loaded the kernels."""
        self._are_awaited = False

    def try_to_load(self) -> None:
        """Runs `load`. If that fails, logs the error and disables lookups."""
        try:
            self.load()
        except Exception:
            logger.exception("prompt lookup is off because its kernels cannot be compiled")


_MAX_SPACES: Final = 4096
"""The maximum number of spaces. A conversation whose space was evicted starts with an empty one."""

_MAX_POSITION: Final = 2**31 - 1

_FIRST_ODDS: Final = (
    (0.02, 0.05, 0.05, 0.1, 0.3),
    (0.05, 0.15, 0.3, 0.5, 0.5),
    (0.08, 0.2, 0.5, 0.7, 0.6),
    (0.08, 0.3, 0.6, 0.8, 0.7),
    (0.1, 0.3, 0.75, 0.9, 0.8),
    (0.15, 0.3, 0.75, 0.9, 0.85),
    (0.15, 0.3, 0.8, 0.9, 0.85),
    (0.15, 0.35, 0.85, 0.9, 0.9),
    (0.2, 0.4, 0.9, 0.9, 0.95),
)
"""The initial probability that a guess is correct, by the length of its match and by how many
candidates agree (see `suffix_kernels.kind_of`). The values are slightly lower than those measured
on the texts of `bench.replay`, because each text soon corrects them."""

_FORCED_ODDS: Final = 0.95
_FIRST_WEIGHT: Final = 4.0
"""The weight of these initial probabilities, as a number of observations."""

_NO_TOKENS: Final = np.empty(0, np.int64)


class Guess(NamedTuple):
    """Guessed tokens that may follow a text.

    Attributes:
        token_ids: int64 [N].
        chances: f64 [N], the probability that each token and all before it are correct.
        kinds: int64 [N], the kind of each token's guess; see `suffix_layout`.
    """

    token_ids: NDArray[np.int64]
    chances: NDArray[np.float64]
    kinds: NDArray[np.int64]

    def first(self, num_tokens: int) -> Guess:
        """Returns the guess truncated to `num_tokens` tokens."""
        return Guess(
            self.token_ids[:num_tokens], self.chances[:num_tokens], self.kinds[:num_tokens]
        )


LEAST_CHANCE: Final = 0.02
"""The minimum probability of a guess; less likely tokens are not guessed."""

NO_GUESS: Final = Guess(_NO_TOKENS, np.empty(0), _NO_TOKENS)


class Space(NamedTuple):
    """A set of texts that are used to guess each other.

    Attributes:
        number: the unique number of the space.
        odds: f64 [2, NUM_KINDS], for all texts of the space: how many guesses of each kind were
            correct, and how many were made.
    """

    number: int
    odds: NDArray[np.float64]


class IndexedText:
    """A text in the index.

    Attributes:
        place: the number of the text's space, the position of its last entry, and the position in
            another text that it follows; see `suffix_kernels.extend` and `look_up`.
        odds: f64 [2, NUM_KINDS], for this text: how many guesses of each kind were correct, and how
            many were made.
        space_odds: the same for all texts of the space.
    """

    __slots__ = ("num_tokens", "odds", "place", "space_odds")

    def __init__(self, space: Space) -> None:
        self.num_tokens = 0
        self.place = np.array([space.number, 0, 0], np.int64)
        self.odds = np.zeros((2, NUM_KINDS))
        self.space_odds = space.odds


class SuffixIndex:
    """An index of the suffixes of recent texts.

    Texts are guessed only from texts of the same space. When the index is full, the oldest entries
    of any space are overwritten. A prompt shares the entries of an earlier text with the same
    prefix. Generated tokens get their own entries, so that frequent continuations count more. The
    index also counts how often guesses are correct, per text and per space, by the length of the
    match and by how many matches agree.

    The method is that of SuffixDecoding (arXiv 2411.04975), with a bounded ring instead of suffix
    trees.
    """

    def __init__(self, num_entries: int, functions: SuffixFunctions | None = None) -> None:
        """Creates an index of `num_entries` tokens, at least 1. `functions` are the kernels; None =
        load them at the first use."""
        self._functions = functions or SuffixFunctions()
        num_heads = 1 << (num_entries - 1).bit_length()
        # Memory is committed when it is written, and only written entries are read.
        self._entries = np.empty((num_entries, NUM_COLUMNS), np.int32)
        self._heads = np.zeros((len(ORDERS), num_heads), np.int32)
        self._end = 1
        # A random seed prevents deliberate hash collisions.
        self._seed = np.uint64(secrets.randbits(64))
        self._spaces: OrderedDict[Hashable, Space] = OrderedDict()
        self._num_spaces = 0
        self._first_odds = np.full((2, NUM_KINDS), _FIRST_WEIGHT)
        self._first_odds[0] *= [*chain.from_iterable(_FIRST_ODDS), _FORCED_ODDS]
        self._token_ids = np.empty(0, np.int64)
        self._chances = np.empty(0)
        self._kinds = _NO_TOKENS

    def new_text(self, space: Hashable) -> IndexedText:
        """Returns an empty text in a space; None = a new space for this text alone."""
        known = None if space is None else self._spaces.get(space)
        if known is None:
            known = Space(self._num_spaces, self._first_odds.copy())
            # More than 2**31 texts would take years.
            self._num_spaces = (self._num_spaces + 1) % _MAX_POSITION
        if space is not None:
            self._spaces[space] = known
            self._spaces.move_to_end(space)
            if len(self._spaces) > _MAX_SPACES:
                self._spaces.popitem(last=False)
        return IndexedText(known)

    def extend(self, text: IndexedText, token_ids: array[int], num_prompt_tokens: int) -> None:
        """Adds a text's new tokens to the index. `token_ids` are all tokens of the text, beginning
        with the prompt. Does nothing until the kernels are loaded."""
        if not self._functions.are_there():
            return
        if text.num_tokens < num_prompt_tokens:
            self._add(text, token_ids[:num_prompt_tokens], shares=True)
        if text.num_tokens < len(token_ids):
            self._add(text, token_ids, shares=False)

    def _add(self, text: IndexedText, token_ids: array[int], *, shares: bool) -> None:
        first = max(0, text.num_tokens - max(ORDERS) + 1)
        tokens = np.frombuffer(token_ids[first:], np.int64)
        if self._end + len(tokens) > _MAX_POSITION:
            # The position would overflow, once in two billion tokens. All stored positions become
            # invalid, so the index starts empty.
            self._heads[:] = 0
            self._end = 1
        num_known = text.num_tokens - first
        self._end = self._functions.extend(
            self._entries, self._heads, self._end, self._seed, text.place, tokens, num_known, shares
        )
        text.num_tokens = len(token_ids)

    def guess(
        self,
        text: IndexedText,
        context: array[int],
        num_tokens: int,
        *,
        chance: float = 1.0,
        least: float = LEAST_CHANCE,
    ) -> Guess:
        """Returns a guess of up to `num_tokens` tokens that follow a text.

        Args:
            context: the last tokens of the text; at most `MAX_MATCH` are used.
            chance: the probability that the text reaches the end of `context`.
            least: the guess ends before its probability falls to this value.
        """
        if not self._functions.are_there():
            return NO_GUESS
        if len(self._token_ids) < num_tokens:
            self._token_ids = np.empty(num_tokens, np.int64)
            self._chances = np.empty(num_tokens)
            self._kinds = np.empty(num_tokens, np.int64)
        found = self._functions.look_up(
            self._entries,
            self._heads,
            self._end,
            self._seed,
            text.place,
            np.frombuffer(context[-MAX_MATCH:], np.int64),
            text.space_odds,
            text.odds,
            chance,
            least,
            self._token_ids[:num_tokens],
            self._chances[:num_tokens],
            self._kinds[:num_tokens],
        )
        if found == 0:
            return NO_GUESS
        return Guess(
            self._token_ids[:found].copy(),
            self._chances[:found].copy(),
            self._kinds[:found].copy(),
        )

    def forced(self, text: IndexedText, token_ids: list[int], chance: float = 1.0) -> Guess:
        """Returns the tokens that a grammar forces as a guess. The guess may be wrong, because the
        model may tokenize the same characters differently. `chance` is the probability that the
        text reaches the first token."""
        right, made = text.space_odds[:, FORCED] + text.odds[:, FORCED]
        count = len(token_ids)
        return Guess(
            np.array(token_ids, np.int64),
            chance * (right / made) ** np.arange(1, count + 1),
            np.full(count, FORCED),
        )

    def learn(self, text: IndexedText, guess: Guess, actual: array[int]) -> None:
        """Compares a guess with the `actual` tokens, and updates the statistics."""
        if self._functions.are_there():
            actual_ids = np.frombuffer(actual, np.int64)
            self._functions.learn(
                text.space_odds, text.odds, guess.token_ids, guess.kinds, actual_ids
            )

    def check(self) -> None:
        """Asserts that entries link to older entries of their space, and that their hashes find
        them."""
        num_entries = len(self._entries)
        oldest = max(1, self._end - num_entries)
        positions = np.arange(oldest, self._end)
        entries = self._entries[positions % num_entries]
        before, after = entries[:, BEFORE], entries[:, AFTER]
        assert (before < positions).all()
        assert (entries[:, CHAIN:] < positions[:, None]).all()
        assert ((after == 0) | ((after > positions) & (after < self._end))).all()
        follows = before >= oldest
        others = self._entries[before[follows] % num_entries]
        assert (others[:, SPACE] == entries[follows, SPACE]).all()
        assert (others[:, AFTER] > 0).all()
        leads = after > 0
        assert (self._entries[after[leads] % num_entries, BEFORE] == positions[leads]).all()
