"""Finds which tokens a piece of an answer was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from fastovms.text.scanning.output import CallArguments, CallBegin, CallEnd, Content, Piece
from fastovms.text.tokens.tracking import TextToken


class TokenAligner:
    """Finds the pieces of a text, in order, and so the tokens that they were generated as.

    Between the pieces there may be markup. A token belongs to the piece that its text begins in or,
    from markup, reaches into. One without text belongs to the piece that it stands in or before;
    one behind a piece, to none.

    Args:
        tags: markup. In a token that is a tag no piece begins but at its beginning.
    """

    def __init__(self, tags: Collection[str] = frozenset()) -> None:
        self._tags = tags
        self._texts: list[str] = []
        # Characters that were dropped before those of `_texts`.
        self._position = 0
        # Tokens whose text begins in `_texts`.
        self._tokens: deque[TextToken] = deque()

    def push(self, text: str, tokens: Iterable[TextToken]) -> None:
        """Adds text. `tokens` are those that begin in `text`, with offsets in characters."""
        self._texts.append(text)
        self._tokens += tokens

    def take(self, piece: str) -> list[TextToken]:
        """Returns the tokens of the piece; what is before them is forgotten. None where the piece
        is not a part of the text."""
        text = "".join(self._texts)
        self._texts = [text]
        found = self._find(text, piece)
        if found < 0:
            return []
        start = self._position + found
        end = start + len(piece)
        taken: list[TextToken] = []
        while self._tokens and self._tokens[0].offset < end:
            token = self._tokens.popleft()
            goes_on = not self._tokens or self._tokens[0].offset > start
            if token.offset >= start or goes_on:
                taken.append(token)
        self._texts = [text[found + len(piece) :]]
        self._position = end
        return taken

    def skip_to(self, position: int) -> None:
        """Forgets the text before a position, which is no piece, and the tokens that begin in
        it."""
        num_chars = position - self._position
        if num_chars <= 0:
            return
        self._texts = ["".join(self._texts)[num_chars:]]
        self._position = position
        while self._tokens and self._tokens[0].offset < position:
            self._tokens.popleft()

    def _find(self, text: str, piece: str) -> int:
        """Returns where the piece begins; -1 = nowhere."""
        found = text.find(piece)
        for start, end in self._spans(len(text)):
            if found < start:
                break
            if start < found < end and text[start:end] in self._tags:
                found = text.find(piece, end)
        return found

    def _spans(self, length: int) -> Iterator[tuple[int, int]]:
        """Returns where in the text that is left the tokens begin and end."""
        ends = [token.offset - self._position for token in islice(self._tokens, 1, None)]
        for token, end in zip(self._tokens, [*ends, length], strict=False):
            yield token.offset - self._position, end


class ContentTokens:
    """Finds which tokens of an answer its content was made of, piece by piece.

    Args:
        aligner: finds the tokens of a piece; None = the answer is content and nothing else, so that
            all of its tokens are.
    """

    def __init__(self, aligner: TokenAligner | None) -> None:
        self._aligner = aligner
        self._untold: list[TextToken] = []

    def push(self, text: str, tokens: Sequence[TextToken]) -> None:
        """Adds the text that pieces are found in, and the tokens that begin in it."""
        if self._aligner is None:
            self._untold += tokens
        else:
            self._aligner.push(text, tokens)

    def take(self, piece: Piece) -> Sequence[TextToken]:
        """Returns the tokens of a piece; none of one that is no content."""
        if self._aligner is None:
            return self.rest()
        if isinstance(piece, CallEnd):
            self._aligner.skip_to(piece.position)
        if isinstance(piece, CallBegin | CallArguments | CallEnd):
            return ()
        tokens = self._aligner.take(piece.text)
        return tokens if isinstance(piece, Content) else ()

    def rest(self) -> Sequence[TextToken]:
        """Returns the tokens that are certainly content and have been told with no piece."""
        untold, self._untold = self._untold, []
        return untold
