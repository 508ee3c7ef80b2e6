"""Incremental detokenization: token ids in, text out, never half a character.

For any split of a sequence of ids, the concatenated pieces equal `Tokenizer.decode` of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """The text of one sample. Made by `Tokenizer.detokenizer`."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds tokens and returns the text that is certain now, often empty."""

    def flush(self) -> str:
        """Ends the text and returns what was held back."""

    @property
    def held(self) -> str:
        """What is held back of the whole characters that the tokens make so far."""


class DecodedBytes(NamedTuple):
    """Text, and the bytes at its end that may still become a character."""

    text: str
    incomplete: bytes


def decode_utf8(data: bytes, *, final: bool) -> DecodedBytes:
    """Decodes as OpenVINO's detokenizer does, which differs from `bytes.decode(errors="replace")`.

    Its `UTF8Validate` operation goes by the bit patterns alone: a lead byte followed by fewer
    continuation bytes than it announces becomes one U+FFFD whatever could have followed, a
    complete sequence that encodes no character (overlong, surrogate, above U+10FFFF) becomes one
    per byte, and so does every stray byte.

    Args:
        final: nothing follows, so that an incomplete sequence at the end is an invalid one.
    """
    pieces: list[str] = []
    start = 0
    while True:
        try:
            pieces.append(data[start:].decode())
            return DecodedBytes("".join(pieces), b"")
        except UnicodeDecodeError as error:
            invalid = start + error.start
        pieces.append(data[start:invalid].decode())
        length = _sequence_length(data[invalid])
        start = invalid + 1
        while start < len(data) and start < invalid + length and data[start] >> 6 == 0b10:
            start += 1
        is_complete = start == invalid + length
        if not is_complete and start == len(data) and not final:
            return DecodedBytes("".join(pieces), data[invalid:])
        pieces.append(REPLACEMENT * (length if is_complete else 1))


def _sequence_length(lead: int) -> int:
    """Bytes that a lead byte announces, itself included; 1 for a byte that cannot lead."""
    if lead >> 5 == 0b110:
        return 2
    if lead >> 4 == 0b1110:
        return 3
    if lead >> 3 == 0b11110:
        return 4
    return 1


class TableDetokenizer:
    """Joins the bytes of the tokens; constant time a token.

    Args:
        token_bytes: what each id contributes; ids beyond the table contribute nothing.
        strip_leading_space: drop one space from the beginning of the text, which SentencePiece
            vocabularies put in front of the first word.
    """

    __slots__ = ("_incomplete", "_strip", "_token_bytes")

    def __init__(self, token_bytes: Sequence[bytes], *, strip_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._strip = strip_leading_space
        self._incomplete = b""

    def push(self, token_ids: Sequence[int]) -> str:
        token_bytes = self._token_bytes
        data = self._incomplete + b"".join(
            [token_bytes[token_id] for token_id in token_ids if token_id < len(token_bytes)]
        )
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        text, self._incomplete = decode_utf8(data, final=False)
        return text

    @property
    def held(self) -> str:
        return ""

    def flush(self) -> str:
        data, self._incomplete = self._incomplete, b""
        return decode_utf8(data, final=True).text


class WindowDetokenizer:
    """Decodes a window of the last tokens again and again: slower, for any detokenizer.

    Text is held back for as long as a later token may change it: an incomplete character becomes
    a whole one, and the clean-up of spaces that some models ask for turns " n't" into "n't".
    """

    __slots__ = ("_decode", "_num_released", "_trim_at", "_window", "held")

    # No rule of a detokenizer looks at more than the last four characters.
    HOLD_BACK = 4
    CONTEXT = 16

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_released = 0
        self._trim_at = 4 * self.CONTEXT
        self.held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        text = self._decode(self._window)
        piece = text[self._num_released : max(len(text) - self.HOLD_BACK, 0)]
        self._num_released += len(piece)
        self.held = text[self._num_released :].rstrip(REPLACEMENT)
        if len(self._window) >= self._trim_at:
            self._trim(text)
        return piece

    def flush(self) -> str:
        piece = self._decode(self._window)[self._num_released :]
        self._window = []
        self._num_released = 0
        self.held = ""
        return piece

    def _trim(self, text: str) -> None:
        """Forgets all but the last tokens, where they alone decode to the end of the text."""
        context = self._window[-self.CONTEXT :]
        end = self._decode(context)
        num_forgotten = len(text) - len(end)
        if text.endswith(end) and num_forgotten <= self._num_released:
            self._window = context
            self._num_released -= num_forgotten
            self._trim_at = 4 * self.CONTEXT
        else:
            self._trim_at = 2 * len(self._window)
