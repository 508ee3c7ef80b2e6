"""Converts tokens to text incrementally."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from fastovms.params import TokenLogprobs

_BREAK: Final = re.compile(r"\S( )\S")
"""Matches a single space between two words; no token spans both words."""

_WINDOW: Final = 1000
"""The number of characters in which such a space is searched. Text without one is cut anywhere,
which may split a token."""


def slices(
    text: str, first: int, longest: int, *, from_end: bool = False, keeps_spaces: bool = True
) -> Iterator[str]:
    """Yields the slices of a text, in the order of the text.

    Args:
        first: the maximum length of the first slice in characters, at least 2; it doubles for each
            next slice.
        longest: the maximum length of any slice in characters.
        from_end: whether to start with the last slice.
        keeps_spaces: whether the space at a cut begins the next slice; otherwise it is dropped.
    """
    start, end, size = 0, len(text), min(first, longest)
    while end - start > size:
        window = min(_WINDOW, size // 2)
        if from_end:
            before, behind = _cut(text, end - size, end - size + window, keeps_spaces)
            yield text[behind:end]
            end = before
        else:
            before, behind = _cut(text, start + size, start + size - window, keeps_spaces)
            yield text[start:before]
            start = behind
        size = min(2 * size, longest)
    if start < end:
        yield text[start:end]


def _cut(text: str, farthest: int, nearest: int, keeps_spaces: bool) -> tuple[int, int]:
    """Returns the end of a slice and the beginning of the next one, at a space between two
    positions, or at `farthest` if there is none."""
    found = _BREAK.search(text, min(farthest, nearest), max(farthest, nearest))
    if found is None:
        return farthest, farthest
    space = found.start(1)
    return space, space if keeps_spaces else space + 1


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Converts the tokens of one sample to text. Created by `Tokenizer.detokenizer`.

    Never splits a character. For any split of a sequence of ids, the concatenated pieces equal
    `Tokenizer.decode` of the whole.
    """

    def push(self, token_ids: Sequence[int]) -> str:
        """Adds tokens and returns the text that is now final, often empty."""

    def flush(self) -> str:
        """Ends the text and returns the text that was held back."""


class LocatingDetokenizer(Detokenizer, Protocol):
    """A detokenizer that also returns the positions of tokens in the text, if they are pushed one
    at a time."""

    @property
    def starts(self) -> Sequence[str]:
        """Returns the start positions of the pushes that the last push or flush has determined, in
        order. Positions are in characters, relative to the end of the text returned before."""


class DecodedBytes(NamedTuple):
    """Decoded text, and the bytes at the end that may still become a character."""

    text: str
    incomplete: bytes


def decode_utf8(data: bytes, *, final: bool) -> DecodedBytes:
    """Decodes like OpenVINO's detokenizer, which differs from `bytes.decode(errors="replace")`.

    Its `UTF8Validate` operation checks only bit patterns. A lead byte followed by fewer
    continuation bytes than it announces becomes one U+FFFD. A complete sequence that encodes no
    character (overlong, surrogate, above U+10FFFF) becomes one U+FFFD per byte, and so does every
    stray byte. `final`: no data follow, so an incomplete sequence at the end is invalid.
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
    """Returns the length in bytes of the UTF-8 character that begins with this byte; 1 for an
    invalid lead byte."""
    if lead >> 5 == 0b110:
        return 2
    if lead >> 4 == 0b1110:
        return 3
    if lead >> 3 == 0b11110:
        return 4
    return 1


def _sequence_end(data: bytes, start: int) -> int:
    """Returns the end of the sequence of a lead byte, which may be shorter than announced."""
    end = start + 1
    limit = min(start + _sequence_length(data[start]), len(data))
    while end < limit and data[end] >> 6 == 0b10:
        end += 1
    return end


class TableDetokenizer:
    """Joins the bytes of the tokens, in constant time per token.

    Args:
        token_bytes: the bytes of each id; ids beyond the table contribute nothing.
        strip_leading_space: whether to drop one space from the beginning of the text, which
            SentencePiece vocabularies put in front of the first word.
    """

    __slots__ = ("_begins", "_incomplete", "_strip", "_token_bytes", "starts")

    def __init__(self, token_bytes: Sequence[bytes], *, strip_leading_space: bool) -> None:
        self._token_bytes = token_bytes
        self._strip = strip_leading_space
        self._incomplete = b""
        # Offsets of the beginnings of pushes, within `_incomplete` or at its end.
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
        """Records the start positions of the pushes of the byte sequence at the beginning of
        `data`, once its characters are in `text`: one character, assigned to the push that
        completes it, or one for each byte."""
        self.starts = ()
        if text and self._begins:
            num_bytes = _sequence_end(data, 0)
            num_characters = len(decode_utf8(data[:num_bytes], final=True).text)
            self.starts = [text[: begin * num_characters // num_bytes] for begin in self._begins]
            self._begins.clear()


class WindowDetokenizer:
    """Decodes a window of the last tokens repeatedly: slower, but works for any tokenizer.

    Text is held back while a later token may change it: an incomplete character may be completed,
    and the clean-up of spaces in some models turns " n't" into "n't". The bytes of tokens are not
    known, so several incomplete characters in a row all begin at the position of the first one.
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
        self.starts = (self._final_text(text[self._num_released :]),)
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

    def _final_text(self, text: str) -> str:
        """Returns the held-back text that is final, without replacement characters (U+FFFD) at its
        end that later tokens may still complete to a character."""
        whole = self._held.rstrip(REPLACEMENT)
        following = text[len(whole) :]
        num_invalid = len(following) - len(following.lstrip(REPLACEMENT))
        if num_invalid == len(following):
            return whole
        return self._held[: len(whole) + num_invalid]

    def _trim(self, text: str) -> None:
        """Drops all but the last tokens, if these alone decode to the end of the text."""
        context = self._window[-self.CONTEXT :]
        end = self._decode(context)
        num_forgotten = len(text) - len(end)
        if text.endswith(end) and num_forgotten <= self._num_released:
            self._window = context
            self._num_released -= num_forgotten
            self._trim_at = 4 * self.CONTEXT
        else:
            self._trim_at = 2 * len(self._window)


Measure = Callable[[str], int]
"""Measures a text: `len` counts characters, `utf8_length` bytes."""


class TextToken(NamedTuple):
    """A token and its position in the text.

    Attributes:
        offset: the length of the text before it. A token that only completes a character begins
            where the character does.
        logprobs: its log probabilities, if the request asked for them.
    """

    token_id: int
    offset: int
    logprobs: TokenLogprobs | None


def utf8_length(text: str) -> int:
    """Returns the length of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


class TrackingDetokenizer:
    """Wraps a `Detokenizer` and keeps tokens until their text is released with `take`."""

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
        # Pushes that began within an incomplete character.
        self._unlocated: deque[tuple[int, TokenLogprobs | None]] = deque()

    @property
    def starts(self) -> Sequence[str]:
        """The start positions of the inner detokenizer, if tokens are pushed one at a time."""
        return self._inner.starts

    def expect(self, logprobs: Iterable[TokenLogprobs]) -> None:
        """Adds the log probabilities of the tokens that will be pushed next; there may be more of
        them."""
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
        """Returns the tokens whose text begins in `text`, the newly released part. With `ended`,
        the text ends here without a stop string, and remaining tokens without text are included.
        After a stop string, tokens that begin after the cut are dropped."""
        self._num_released += self._measure(text)
        num_taken = len(self._pending)
        if not ended:
            num_taken = bisect_left(self._pending, self._num_released, key=attrgetter("offset"))
        taken = self._pending[:num_taken]
        del self._pending[:num_taken]
        return taken
