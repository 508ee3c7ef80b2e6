"""Turns a sample's tokens into the text, and the pieces of it, that a client may see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fastovms.text.scanning.output import Content, OutputParser, Piece, PlainParser, joined
from fastovms.text.tokens.detokenizer import Detokenizer
from fastovms.text.tokens.stop import StopMatcher


def content_of(new_parser: Callable[[], OutputParser], text: str) -> str:
    """Returns the content of a text."""
    parser = new_parser()
    pieces = [*parser.push(text), *parser.finish(is_cut=False)]
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


class TextDelta(NamedTuple):
    """What a push added.

    Attributes:
        text: new text, often empty.
        stop: the stop string that ended the text; pushes after it add nothing.
        num_tokens: how many tokens were pushed so far, up to the one that completed the stop
            string.
        pieces: what the parser, if there is one, has found in the text.
    """

    text: str
    stop: str | None
    num_tokens: int
    pieces: Sequence[Piece] = ()


class TextStream:
    """Detokenizes, ends at a stop string and takes the text apart.

    Args:
        stop: non-empty strings.
        include_stop: whether to keep the stop string at the end of the text.
        min_tokens: a stop string that is complete within so many tokens does not end the text.
        parser: finds pieces in the text; it is handed the text of one token at a time, so that what
            it makes of it does not depend on how many come at once.
        stop_in_reasoning: whether a stop string ends the text in reasoning and in calls, too;
            otherwise only in content.

    Attributes:
        num_reasoning_tokens: how many tokens the parser has taken for reasoning so far.
    """

    __slots__ = (
        "_content_matcher",
        "_detokenizer",
        "_matcher",
        "_min_tokens",
        "_num_tokens",
        "_parser",
        "_stop",
        "num_reasoning_tokens",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
        parser: OutputParser | None = None,
        stop_in_reasoning: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        matcher = StopMatcher(stop, include_stop) if stop else None
        is_parsed = parser is not None and not isinstance(parser, PlainParser)
        of_content = is_parsed and not stop_in_reasoning
        self._matcher = None if of_content else matcher
        self._content_matcher = matcher if of_content else None
        self._min_tokens = min_tokens
        self._parser = parser
        self._stop: str | None = None
        self._num_tokens = 0
        self.num_reasoning_tokens = 0

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Adds tokens, without the end-of-text token."""
        if self._matcher is None and self._parser is None:
            self._num_tokens += len(token_ids)
            return TextDelta(self._detokenizer.push(token_ids), None, self._num_tokens)
        texts: list[str] = []
        pieces: list[Piece] = []
        for token_id in token_ids:
            if self._stop is not None:
                break
            self._num_tokens += 1
            text = self._detokenizer.push((token_id,))
            if self._matcher is not None:
                ends = self._num_tokens > self._min_tokens
                text, self._stop = self._matcher.push(text, ends=ends)
            texts.append(text)
            if self._parser is not None:
                pieces += self._cut(self._parser.push(text))
                self.num_reasoning_tokens += self._parser.in_reasoning
                if self._stop is not None and self._matcher is not None:
                    pieces += self._parser.finish(is_cut=False)
        if len(pieces) > 1:
            pieces = joined(pieces)
        return TextDelta("".join(texts), self._stop, self._num_tokens, pieces)

    def flush(self, *, is_cut: bool = True) -> TextDelta:
        """Ends the text: what was held back is released, unless it completes a stop string.

        Args:
            is_cut: whether a limit ended the text.
        """
        text = self._detokenizer.flush()
        if self._matcher is not None:
            ends = self._num_tokens > self._min_tokens
            text, self._stop = self._matcher.push(text, ends=ends)
            text += self._matcher.flush()
        pieces: Sequence[Piece] = ()
        if self._parser is not None:
            found = [*self._parser.push(text), *self._parser.finish(is_cut=is_cut)]
            pieces = [*self._cut(found), *self._held()]
        return TextDelta(text, self._stop, self._num_tokens, pieces)

    def _cut(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Returns the pieces up to the first stop string in a content. A stop string does not reach
        over a call or reasoning."""
        if self._content_matcher is None:
            return pieces
        found: list[Piece] = []
        for piece in pieces:
            if self._stop is not None:
                break
            if not isinstance(piece, Content):
                found += [*self._held(), piece]
                continue
            ends = self._num_tokens > self._min_tokens
            text, self._stop = self._content_matcher.push(piece.text, ends=ends)
            found += [Content(text)] if text else []
        return found

    def _held(self) -> Sequence[Piece]:
        """Ends a content and returns what was held back of it."""
        if self._content_matcher is None or self._stop is not None:
            return ()
        text = self._content_matcher.flush()
        return [Content(text)] if text else ()
