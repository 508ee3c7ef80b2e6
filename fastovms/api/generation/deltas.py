"""Declares the deltas by which a generation tells of its samples, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from fastovms.params import FinishReason
from fastovms.telemetry.timings import SampleTimings
from fastovms.text.scanning.output import TEXT_PIECES, Piece, joined
from fastovms.text.tokens.tracking import TextToken

_TOKEN_COST: Final = 256
_CALL_COST: Final = 256
"""How many characters a token with its log probabilities, or the beginning of a call, counts
for."""


class SampleDelta(NamedTuple):
    """What one step added to the text of one sample.

    Attributes:
        choice: prompt position * n + sample.
        text: new text, often empty: it may be held back. Where it is parsed, `pieces` hold it.
        finish_reason: set on the sample's last delta only.
        stop_reason: the stop string that ended the sample, or the id among `stop_token_ids`.
        num_tokens: tokens of the sample so far, as usage counts them.
        tokens: those whose text begins in `text`, if they are tracked. None of the tokens that a
            stop string has cut off is there.
        pieces: what the text is made of, where it is parsed.
        parsed: the text that the pieces are found in, and the offsets of `tokens` count in; it may
            come before its pieces. Empty where no tokens are tracked.
    """

    choice: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_tokens: int = 0
    tokens: Sequence[TextToken] = ()
    pieces: Sequence[Piece] = ()
    parsed: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it for a client."""
        return not self.text and not self.pieces and not self.tokens

    @property
    def size(self) -> int:
        """How many characters it counts for while it waits for a client that does not read."""
        size = len(self.text) + len(self.parsed) + _TOKEN_COST * len(self.tokens)
        for piece in self.pieces:
            size += len(piece.text) if isinstance(piece, TEXT_PIECES) else _CALL_COST
        return size


def merged(deltas: Sequence[SampleDelta]) -> SampleDelta:
    """Returns the last of a sample's consecutive deltas, with the texts, tokens and pieces of
    all."""
    return deltas[-1]._replace(
        text="".join([delta.text for delta in deltas]),
        tokens=[token for delta in deltas for token in delta.tokens],
        pieces=joined(piece for delta in deltas for piece in delta.pieces),
        parsed="".join([delta.parsed for delta in deltas]),
    )


class Usage(NamedTuple):
    """What a request has cost so far; a prompt counts once, however often it is sampled.

    Attributes:
        reasoning_tokens: how many of the completion tokens are reasoning; None where the text is
            not parsed.
        timings: how long its one sample took; None where the answer is not to tell it.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int | None = None
    timings: SampleTimings | None = None


DeltaCallback = Callable[[SampleDelta], None]
