"""Turns token ids into text as they come, never half a character.

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


class LocatingDetokenizer(Detokenizer, Protocol):
    """A detokenizer that tells where in the text the tokens begin, if they are pushed one at a
    time."""

    @property
    def starts(self) -> Sequence[str]:
        """Returns positions, one for each push whose beginning the last push or flush has made
        certain, in order: characters of the text before it, counted from the end of what had been
        returned until then."""


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
        start = _sequence_end(data, invalid)
        length = _sequence_length(data[invalid])
        is_complete = start == invalid + length
        if not is_complete and start == len(data) and not final:
            return DecodedBytes("".join(pieces), data[invalid:])
        pieces.append(REPLACEMENT * (length if is_complete else 1))


def _sequence_length(lead: int) -> int:
    """Returns how many bytes a lead byte announces, itself included; 1 for a byte that cannot
    lead."""
    if lead >> 5 == 0b110:
        return 2
    if lead >> 4 == 0b1110:
        return 3
    if lead >> 3 == 0b11110:
        return 4
    return 1


def _sequence_end(data: bytes, start: int) -> int:
    """Returns where the sequence of a lead byte is over: it need not have all that the byte
    announces."""
    end = start + 1
    limit = min(start + _sequence_length(data[start]), len(data))
    while end < limit and data[end] >> 6 == 0b10:
        end += 1
    return end


class TableDetokenizer:
    """Joins the bytes of the tokens, in constant time a token.

    Args:
        token_bytes: what each id contributes; ids beyond the table contribute nothing.
        strip_leading_space: whether to drop one space from the beginning of the text, which
            SentencePiece vocabularies put in front of the first word.
    """

    __slots__ = ("_begins", "_incomplete", "_strip", "_token_bytes", "starts")

    def __init__(self, token_bytes: Sequence[bytes], *, strip_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._strip = strip_leading_space
        self._incomplete = b""
        # Offsets, in `_incomplete` or right behind it, at which pushes began.
        self._begins: list[int] = []
        self.starts: Sequence[str] = ()

    def push(self, token_ids: Sequence[int]) -> str:
        token_bytes = self._token_bytes
        begin = len(self._incomplete)
        data = self._incomplete + b"".join(
            [token_bytes[token_id] for token_id in token_ids if token_id < len(token_bytes)]
        )
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        text, self._incomplete = decode_utf8(data, final=False)
        if begin:
            self._begins.append(begin)
            self._locate(data, text)
        else:
            self.starts = ("",)
        return text

    def flush(self) -> str:
        data, self._incomplete = self._incomplete, b""
        text = decode_utf8(data, final=True).text
        self._locate(data, text)
        return text

    def _locate(self, data: bytes, text: str) -> None:
        """Notes where pushes began in the sequence that `data` opens with, once it is in `text`: as
        one character, which the push that ends it makes, or as one for each byte."""
        self.starts = ()
        if text and self._begins:
            num_bytes = _sequence_end(data, 0)
            num_characters = len(decode_utf8(data[:num_bytes], final=True).text)
            self.starts = [text[: begin * num_characters // num_bytes] for begin in self._begins]
            self._begins.clear()


class WindowDetokenizer:
    """Decodes a window of the last tokens again and again: slower, but for any tokenizer.

    Text is held back for as long as a later token may change it: an incomplete character becomes a
    whole one, and the clean-up of spaces that some models ask for turns " n't" into "n't". The
    bytes of its tokens are not known: of several in a row that are no characters all are said to
    begin where the first one does.
    """

    __slots__ = ("_decode", "_held", "_num_released", "_trim_at", "_window", "starts")

    # No rule of a detokenizer looks at more than the last four characters.
    HOLD_BACK = 4
    CONTEXT = 16

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._num_released = 0
        self._trim_at = 4 * self.CONTEXT
        self._held = ""
        self.starts: Sequence[str] = ()

    def push(self, token_ids: Sequence[int]) -> str:
        self._window.extend(token_ids)
        text = self._decode(self._window)
        self.starts = (self._standing(text[self._num_released :]),)
        piece = text[self._num_released : max(len(text) - self.HOLD_BACK, 0)]
        self._num_released += len(piece)
        self._held = text[self._num_released :]
        if len(self._window) >= self._trim_at:
            self._trim(text)
        return piece

    def flush(self) -> str:
        piece = self._decode(self._window)[self._num_released :]
        self._window = []
        self._num_released = 0
        self._held = ""
        self.starts = ()
        return piece

    def _standing(self, text: str) -> str:
        """Returns what was held back, without the replacement characters at its end that are not in
        `text` as well or may still become a character there."""
        whole = self._held.rstrip(REPLACEMENT)
        following = text[len(whole) :]
        num_invalid = len(following) - len(following.lstrip(REPLACEMENT))
        if num_invalid == len(following):
            return whole
        return self._held[: len(whole) + num_invalid]

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
