"""One sample's way from tokens to the text that a client may see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastovms.text.detokenizer import Detokenizer
from fastovms.text.stop import StopMatcher


class TextDelta(NamedTuple):
    """What a push added.

    Attributes:
        text: new text, often empty.
        stop: the stop string that ended the text; pushes after it add nothing.
        num_tokens: tokens pushed so far; of those pushed after the one that completed the stop
            string none is counted.
    """

    text: str
    stop: str | None
    num_tokens: int


class TextStream:
    """Detokenizes and ends at a stop string.

    Args:
        stop: non-empty strings.
        include_stop: keep the stop string at the end of the text.
    """

    __slots__ = ("_detokenizer", "_matcher", "_num_tokens", "_stop")

    def __init__(
        self, detokenizer: Detokenizer, stop: Sequence[str] = (), *, include_stop: bool = False
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop, include_stop) if stop else None
        self._stop: str | None = None
        self._num_tokens = 0

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Adds tokens, without the end-of-text token."""
        if self._matcher is None:
            self._num_tokens += len(token_ids)
            return TextDelta(self._detokenizer.push(token_ids), None, self._num_tokens)
        pieces = []
        for token_id in token_ids:
            if self._stop is not None:
                break
            self._num_tokens += 1
            text, self._stop = self._matcher.push(self._detokenizer.push((token_id,)))
            pieces.append(text)
        return TextDelta("".join(pieces), self._stop, self._num_tokens)

    def flush(self) -> TextDelta:
        """Ends the text: what was held back is released, unless it completes a stop string."""
        text = self._detokenizer.flush()
        if self._matcher is not None:
            text, self._stop = self._matcher.push(text)
            text += self._matcher.flush()
        return TextDelta(text, self._stop, self._num_tokens)
