"""Which tokens a piece of an answer was made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from fastovms.text.tracking import TextToken


class TokenAligner:
    """Finds the pieces of a text, in order, in the tokens that it was generated as. Between the
    pieces there may be tokens of markup. One that reaches into two pieces belongs to the first.

    Args:
        token_bytes: the bytes of a token by its id.
        tags: markup. In a token that is a tag no piece begins but at its beginning.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], tags: Collection[str] = frozenset()
    ) -> None:
        self._token_bytes = token_bytes
        self._tags = {tag.encode() for tag in tags}
        self._tokens: deque[tuple[TextToken | None, int]] = deque()
        self._data = bytearray()

    def push(self, tokens: Iterable[TextToken]) -> None:
        for token in tokens:
            data = self._token_bytes(token.token_id)
            self._tokens.append((token, len(data)))
            self._data += data

    def take(self, piece: str) -> list[TextToken]:
        """The tokens of the piece; what is before them is forgotten. None where the piece is not a
        part of the text."""
        data = piece.encode()
        start = self._find(data)
        if start < 0:
            return []
        end = start + len(data)
        taken: list[TextToken] = []
        position = 0
        while self._tokens and position < end:
            token, length = self._tokens.popleft()
            position += length
            if position > start and token is not None:
                taken.append(token)
        if position > end:
            self._tokens.appendleft((None, position - end))
        del self._data[:end]
        return taken

    def _find(self, data: bytes) -> int:
        """-1 = nowhere."""
        start = self._data.find(data)
        position = 0
        for _, length in self._tokens:
            if start < position:
                break
            end = position + length
            if position < start < end and bytes(self._data[position:end]) in self._tags:
                start = self._data.find(data, end)
            position = end
        return start
