"""Tells which tokens a text was made of, and where in it each of them begins."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from fastovms.params import TokenLogprobs
from fastovms.text.tokens.detokenizer import LocatingDetokenizer

Measure = Callable[[str], int]
"""Measures a text: `len` counts characters, `utf8_length` bytes."""


class TextToken(NamedTuple):
    """A token of a text.

    Attributes:
        offset: length of the text before it. A token that only completes a character begins where
            the character does.
        logprobs: its log probabilities, if the request asked for them.
    """

    token_id: int
    offset: int
    logprobs: TokenLogprobs | None


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class TrackingDetokenizer:
    """A `Detokenizer` around another one that keeps the tokens until their text is released. `take`
    is told what a stop matcher behind it makes of the text."""

    __slots__ = (
        "_inner",
        "_logprobs",
        "_measure",
        "_num_decoded",
        "_num_released",
        "_pending",
        "_unlocated",
    )

    def __init__(self, inner: LocatingDetokenizer, measure: Measure) -> None:
        self._inner = inner
        self._measure = measure
        self._logprobs: Iterator[TokenLogprobs] = iter(())
        self._num_decoded = 0
        self._num_released = 0
        self._pending: list[TextToken] = []
        # Pushes that began within a character which is not yet certain.
        self._unlocated: deque[tuple[int, TokenLogprobs | None]] = deque()

    def expect(self, logprobs: Iterable[TokenLogprobs]) -> None:
        """Adds the log probabilities of the tokens that will be pushed next; there may be more."""
        self._logprobs = iter(logprobs)

    def push(self, token_ids: Sequence[int]) -> str:
        pieces = []
        for token_id in token_ids:
            self._unlocated.append((token_id, next(self._logprobs, None)))
            piece = self._inner.push((token_id,))
            self._locate(piece)
            pieces.append(piece)
        return "".join(pieces)

    def flush(self) -> str:
        piece = self._inner.flush()
        self._locate(piece)
        return piece

    def _locate(self, piece: str) -> None:
        for start in self._inner.starts:
            token_id, logprobs = self._unlocated.popleft()
            offset = self._num_decoded + self._measure(start)
            if self._pending:
                # A clean-up of spaces may shorten the text that the tokens before it made.
                offset = max(offset, self._pending[-1].offset)
            self._pending.append(TextToken(token_id, offset, logprobs))
        self._num_decoded += self._measure(piece)

    def take(self, text: str, *, ended: bool = False) -> list[TextToken]:
        """Returns the tokens whose text begins in `text`, the part of it that is released now.
        `ended` says that the text ends here by itself: tokens without text go with it. A stop
        string instead leaves behind the tokens that begin where it has cut."""
        self._num_released += self._measure(text)
        num_taken = len(self._pending)
        if not ended:
            num_taken = bisect_left(self._pending, self._num_released, key=attrgetter("offset"))
        taken = self._pending[:num_taken]
        del self._pending[:num_taken]
        return taken
