"""Logits processors, which change a sequence's logits before a token is drawn.

Processors are created per sequence, from the table at the end of this file, only if the request
needs them. A processor changes one row of logits in place, given the sequence's tokens so far. It
may keep state about the tokens read so far, because tokens are never removed; `__copy__` copies the
state for a fork. A new filter is a class (or a function of the parameters that returns a function)
and a row of the table.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fastovms.engine.model.model import Floats
from fastovms.engine.sequence import LogitsProcessor
from fastovms.params import ReasoningTags, SamplingParams


class LogitBias:
    """Adds a number to the logits of some tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._ids = _ids(token_id for token_id, _ in params.logit_bias)
        self._bias = np.array([bias for _, bias in params.logit_bias], np.float32)

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        logits[self._ids] += self._bias


class AllowedTokens:
    """Excludes all tokens that are not in a list."""

    def __init__(self, params: SamplingParams) -> None:
        self._ids = _ids(params.allowed_token_ids or ())

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        allowed = logits[self._ids]
        logits.fill(-np.inf)
        logits[self._ids] = allowed


class BadWords:
    """Excludes the token that would complete a banned token sequence in the generated text."""

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._single = _ids(word[0] for word in params.bad_words_token_ids if len(word) == 1)
        self._longer = [
            (array("q", word[:-1]), word[-1])
            for word in params.bad_words_token_ids
            if len(word) > 1
        ]

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        logits[self._single] = -np.inf
        num_generated = len(token_ids) - self._num_prompt_tokens
        for beginning, last in self._longer:
            if len(beginning) <= num_generated and token_ids[-len(beginning) :] == beginning:
                logits[last] = -np.inf


class MinTokens:
    """Excludes every token that would end the sample before it has `min_tokens`."""

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._ids = _ids(params.eos_token_ids | params.stop_token_ids)
        self._until = num_prompt_tokens + params.min_tokens

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        if len(token_ids) < self._until:
            logits[self._ids] = -np.inf


_ROOM: Final = 64


class Penalties:
    """Applies the repetition penalty over prompt and output, then the frequency and presence
    penalties over the output (in the same order and over the same tokens as vLLM and
    openvino_genai)."""

    def __init__(self, params: SamplingParams, prompt_token_ids: array[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._num_read = len(prompt_token_ids)
        repeats = params.repetition_penalty != 1
        self._prompt_ids = np.unique(np.array(prompt_token_ids if repeats else (), np.int64))
        # The slot of each generated token, by id, and the contents of the slots.
        self._slots: dict[int, int] = {}
        self._ids = np.zeros(_ROOM, np.int64)
        self._counts = np.zeros(_ROOM, np.float32)
        # Whether the token is generated, not part of the prompt.
        self._is_new = np.zeros(_ROOM, np.bool_)

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        if len(token_ids) > self._num_read:
            self._count(token_ids[self._num_read :])
            self._num_read = len(token_ids)
        num_seen = len(self._slots)
        ids, counts = self._ids[:num_seen], self._counts[:num_seen]
        if self._repetition != 1:
            logits[self._prompt_ids] = self._repeated(logits[self._prompt_ids])
            new = ids[self._is_new[:num_seen]]
            logits[new] = self._repeated(logits[new])
        values = logits[ids] - self._frequency * counts
        values -= self._presence
        logits[ids] = values

    def __copy__(self) -> Penalties:
        """Returns an independent copy. The prompt's tokens, which may be many, are shared."""
        clone = object.__new__(Penalties)
        clone.__dict__.update(self.__dict__)
        clone._slots = self._slots.copy()
        clone._ids, clone._counts = self._ids.copy(), self._counts.copy()
        clone._is_new = self._is_new.copy()
        return clone

    def _repeated(self, values: Floats) -> Floats:
        return np.where(values > 0, values / self._repetition, values * self._repetition)

    def _count(self, token_ids: Iterable[int]) -> None:
        for token_id, count in Counter(token_ids).items():
            slot = self._slots.get(token_id)
            if slot is None:
                slot = self._slots[token_id] = len(self._slots)
                if slot == self._ids.size:
                    self._grow()
                self._ids[slot] = token_id
                self._is_new[slot] = not self._is_of_prompt(token_id)
            self._counts[slot] += count

    def _is_of_prompt(self, token_id: int) -> bool:
        place = int(np.searchsorted(self._prompt_ids, token_id))
        return place < self._prompt_ids.size and bool(self._prompt_ids[place] == token_id)

    def _grow(self) -> None:
        room = self._ids.size
        self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
        self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._is_new = np.concatenate([self._is_new, np.zeros(room, np.bool_)])


_MAX_DELAY: Final = 16
"""The maximum number of tokens beyond the budget for completing an end tag that the model has
begun."""


class ReasoningLimit:
    """Ends reasoning when its token budget is used up, by forcing the tokens of the closing tag. A
    character, or an end tag, that has begun is completed first."""

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        assert params.reasoning_budget is not None
        self._budget = budget = params.reasoning_budget
        self._num_read = num_prompt_tokens
        self._num_tokens = 0
        self._closing = 0  # number of closing tokens so far
        self._inside: ReasoningTags | None = budget.tags[0] if budget.is_inside else None
        self._is_over = False
        self._text = b""  # the last bytes, which may end with the beginning of a tag
        texts = [*budget.other_ends, *(text for tag in budget.tags for text in tag[:2])]
        self._longest = max(map(len, texts))

    def __call__(self, logits: Floats, token_ids: array[int]) -> None:
        while self._num_read < len(token_ids) and not self._is_over:
            self._read(token_ids[self._num_read])
            self._num_read += 1
        if (forced := self._forced()) is not None:
            logits.fill(-np.inf)
            logits[forced] = 0

    def _forced(self) -> int | None:
        """Returns the only allowed next token; None = any token is allowed."""
        if self._inside is None or self._is_over:
            return None
        if not self._closing:
            excess = self._num_tokens - self._budget.num_tokens
            is_due = excess >= 0 and not _ends_within_character(self._text)
            ends = (self._inside.end, *self._budget.other_ends)
            if not is_due or (excess < _MAX_DELAY and _ends_within(self._text, ends)):
                return None
        return self._inside.closing_token_ids[self._closing]

    def _read(self, token_id: int) -> None:
        """Updates the state with the next token."""
        budget = self._budget
        if self._inside is not None and token_id == self._forced():
            self._closing += 1
            if self._closing == len(self._inside.closing_token_ids):
                self._leave()
            return
        self._text += budget.token_bytes[token_id]
        if self._inside is None:
            self._look_for_begin()
            return
        self._num_tokens += 1
        self._text = self._text[-self._longest - len(budget.token_bytes[token_id]) :]
        if any(end in self._text for end in (self._inside.end, *budget.other_ends)):
            self._leave()

    def _leave(self) -> None:
        self._inside, self._closing, self._text = None, 0, b""
        self._is_over = not self._budget.is_anywhere

    def _look_for_begin(self) -> None:
        found = [tag for tag in self._budget.tags if tag.begin in self._text]
        if not self._budget.is_anywhere:
            self._text = self._text.lstrip()
            found = [tag for tag in found if self._text.startswith(tag.begin)]
            begun = any(tag.begin.startswith(self._text) for tag in self._budget.tags)
            self._is_over = not found and not begun
        else:
            self._text = self._text[-self._longest :]
        if found:
            self._inside = max(found, key=lambda tag: len(tag.begin))
            self._text = b""


def _ends_within_character(text: bytes) -> bool:
    """Returns whether UTF-8 bytes (RFC 3629, 3) end with an incomplete character."""
    for distance, byte in enumerate(reversed(text[-4:]), 1):
        if byte < 0x80:
            return False
        if byte >= 0xC0:
            return distance < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return False


def _ends_within(text: bytes, parts: Iterable[bytes]) -> bool:
    """Returns whether `text` ends with a proper beginning of any of `parts`."""
    return any(text.endswith(part[:size]) for part in parts for size in range(1, len(part)))


_Maker = Callable[[SamplingParams, "array[int]"], LogitsProcessor]
_Wanted = Callable[[SamplingParams], bool]

# In the order in which they apply.
_PROCESSORS: tuple[tuple[_Wanted, _Maker], ...] = (
    (lambda p: bool(p.logit_bias), lambda p, prompt: LogitBias(p)),
    (lambda p: p.allowed_token_ids is not None, lambda p, prompt: AllowedTokens(p)),
    (lambda p: bool(p.bad_words_token_ids), lambda p, prompt: BadWords(p, len(prompt))),
    (lambda p: p.min_tokens > 0, lambda p, prompt: MinTokens(p, len(prompt))),
    (
        lambda p: (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) != (1, 0, 0),
        Penalties,
    ),
    (
        lambda p: p.reasoning_budget is not None,
        lambda p, prompt: ReasoningLimit(p, len(prompt)),
    ),
)


def logits_processors(
    params: SamplingParams, prompt_token_ids: array[int]
) -> tuple[LogitsProcessor, ...]:
    """Returns the processors for one sample of a request; usually none."""
    return tuple(make(params, prompt_token_ids) for wanted, make in _PROCESSORS if wanted(params))


def _ids(token_ids: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(token_ids, np.int64)
